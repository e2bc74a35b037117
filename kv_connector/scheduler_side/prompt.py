"""What makes two prompts the same (I7).

Token ids alone are not enough: two images, two LoRAs or two cache salts give the same ids and other KV. vLLM's own
block hashes depend on a seed and on the block size, so they cannot be compared between nodes.
"""

from array import array
from collections.abc import Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vllm.v1.request import Request

    from baton.kv_connector.vllm_compat.lora import Adapters
    from baton.kv_connector.vllm_compat.media import Media

ADAPTER_CHANGED = "the adapter's files have changed while the prompt waited: the two nodes may see different prompts"


def prompt_hash(
    request: "Request",
    adapters: "Adapters | None" = None,
    media: "Media | None" = None,
    answer: Sequence[int] = (),
) -> bytes:
    """Return 16 bytes naming the prompt of `request`, and tokens that follow it: token ids, multimodal inputs, LoRA and cache salt.

    Without `adapters`, which know what was loaded, and `media`, which has a digest of how images and sound are read,
    two nodes name a prompt alike even where it is not the same, and so find out at once.
    """
    digest = blake2b(array("q", request.prompt_token_ids or ()).tobytes(), digest_size=16)
    digest.update(array("q", answer).tobytes())
    read = media.digest if media else b""
    for feature in request.mm_features:
        place = feature.mm_position
        digest.update(f"|mm {feature.identifier} {place.offset} {place.length}".encode() + read)
    if request.lora_request is not None:
        name = adapters.name_of(request.lora_request) if adapters else request.lora_request.lora_name
        digest.update(f"|lora {name}".encode())
    if request.cache_salt:
        digest.update(f"|salt {request.cache_salt}".encode())
    return digest.digest()


def adapter_name(request: "Request", adapters: "Adapters") -> str:
    """Name the adapter of `request` by what was loaded; empty if it has none. While it waits, another name is a change."""
    return adapters.name_of(request.lora_request) if request.lora_request is not None else ""
