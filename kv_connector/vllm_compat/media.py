"""What, beside an item itself, decides what an engine makes of an image or a sound: equal on both nodes, or each computes its own prompts with them."""

import secrets
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from vllm.config import VllmConfig

# vLLM puts what a request says of the first two into the names of its items, and not what a server was started with.
_SETTINGS: Final = (
    *("mm_processor_kwargs", "media_io_kwargs", "mm_encoder_attn_dtype"),
    *("mm_hasher_algorithm", "video_pruning_rate"),
)
_FILES: Final = ("preprocessor_config.json", "processor_config.json")


def media_digest(vllm_config: "VllmConfig") -> bytes:
    """Return a digest of how an engine reads and names media; empty for a model that takes none.

    The model's own name is part of it, since it is part of the names that vLLM gives to items.
    """
    model = vllm_config.model_config
    media = getattr(model, "multimodal_config", None)
    if media is None:
        return b""
    said = [model.model, *(getattr(media, name, None) or None for name in _SETTINGS)]
    digest = blake2b(repr(said).encode(), digest_size=8)
    for file in (Path(model.model) / name for name in _FILES):
        digest.update(file.read_bytes() if file.is_file() else b"-")
    return digest.digest()


def media_identity(vllm_config: "VllmConfig", *, keeps_media: bool) -> bytes:
    """Return what stands beside each item in a prompt's identity: that digest, or what no other engine has.

    The latter where a prompt with media cannot be handed over: where videos are pruned, positions of tokens follow from what the encoder
    has said, and a preemption would end an engine whose scheduler does not keep media (`keeps_media`).
    """
    digest = media_digest(vllm_config)
    media = getattr(vllm_config.model_config, "multimodal_config", None)
    if digest and (not keeps_media or getattr(media, "video_pruning_rate", None)):
        return secrets.token_bytes(8)
    return digest
