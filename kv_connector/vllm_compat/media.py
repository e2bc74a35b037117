"""What, beside an item itself, decides what an engine makes of an image or a sound: equal on both nodes, or each computes its own prompts with them."""

import secrets
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from vllm.config import VllmConfig

# vLLM puts what a request says of these into the names of its items, and not what a server was started with.
_SETTINGS: Final = ("mm_processor_kwargs", "media_io_kwargs", "mm_encoder_attn_dtype")
_FILES: Final = ("preprocessor_config.json", "processor_config.json")


def media_digest(vllm_config: "VllmConfig", *, keeps_media: bool) -> bytes:
    """Return a digest of how an engine reads media; empty for a model that takes none.

    It is equal to no other engine's where a prompt with media cannot be handed over: where videos are pruned, positions of tokens follow from
    what the encoder has said, and a preemption would end an engine whose scheduler does not keep media (`keeps_media`).
    """
    media = getattr(vllm_config.model_config, "multimodal_config", None)
    if media is None:
        return b""
    if not keeps_media or getattr(media, "video_pruning_rate", None):
        return secrets.token_bytes(8)
    digest = blake2b(digest_size=8)
    digest.update(repr([getattr(media, name, None) or None for name in _SETTINGS]).encode())
    folder = Path(vllm_config.model_config.model)
    for name in _FILES:
        file = folder / name
        digest.update(file.read_bytes() if file.is_file() else b"")
    return digest.digest()
