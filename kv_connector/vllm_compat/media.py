"""What, beside an item itself, decides what an engine makes of an image or a sound, and which engines cannot hand over prompts with them."""

from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from vllm.config import VllmConfig

# vLLM puts what a request says of the first two into the names of its items, and not what a server was started with.
_SETTINGS: Final = ("mm_processor_kwargs", "media_io_kwargs", "mm_encoder_attn_dtype")
_FILES: Final = ("preprocessor_config.json", "processor_config.json", "params.json", "tekken.json")

SCHEDULER: Final = (
    "prompts with images or sound are not handed over with another scheduler class: leave out --scheduler-cls"
)
PRUNING: Final = (
    "where videos are pruned, positions of tokens follow from what an encoder has said: leave out --video-pruning-rate"
)
UNNAMED: Final = (
    "without a prefix cache and with --mm-processor-cache-gb 0, vLLM numbers items and does not name them by what they hold: "
    "leave one of the two out"
)
BIDIRECTIONAL: Final = "attention in both directions within an image has not been tried between two nodes"


class Media(NamedTuple):
    """How an engine reads images and sound."""

    digest: bytes = b""  # equal on two nodes that read them alike; empty for a model that takes none
    objection: str = ""  # why prompts with them are not handed over

    def objection_to(self, items: Sequence[object]) -> str:
        return self.objection if items else ""


NO_MEDIA: Final = Media()


def media_of(vllm_config: "VllmConfig", *, keeps_media: bool) -> Media:
    """Look at an engine's configuration; `keeps_media`: its scheduler sends workers every item whole, so that a preemption is survived."""
    model = vllm_config.model_config
    found = getattr(model, "multimodal_config", None)
    if found is None:
        return NO_MEDIA
    objection = ""
    if getattr(found, "video_pruning_rate", None):
        objection = PRUNING
    elif getattr(found, "mm_processor_cache_gb", None) == 0 and not vllm_config.cache_config.enable_prefix_caching:
        objection = UNNAMED
    elif getattr(model, "is_mm_prefix_lm", False):
        objection = BIDIRECTIONAL
    return Media(media_digest(vllm_config), objection if keeps_media else SCHEDULER)


def media_digest(vllm_config: "VllmConfig") -> bytes:
    """Return a digest of how an engine reads media; empty for a model that takes none.

    The model's name is not in it: vLLM has that in the name of each item.
    """
    model = vllm_config.model_config
    media = getattr(model, "multimodal_config", None)
    if media is None:
        return b""
    digest = blake2b(repr([getattr(media, name, None) or None for name in _SETTINGS]).encode(), digest_size=8)
    for file in (Path(model.model) / name for name in _FILES):
        digest.update(file.read_bytes() if file.is_file() else b"-")
    return digest.digest()
