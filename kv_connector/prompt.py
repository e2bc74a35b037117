"""What makes two prompts the same (I7).

Token ids alone are not enough: two images, two LoRAs or two cache salts give the same ids and other KV. vLLM's own
block hashes depend on a seed and on the block size, so they cannot be compared between nodes.
"""

from array import array
from hashlib import blake2b
from typing import TYPE_CHECKING

from kv_connector.adapter import adapter_name

if TYPE_CHECKING:
    from vllm.v1.request import Request


def prompt_hash(request: "Request", *, with_files: bool = True) -> bytes:
    """Return 16 bytes naming the prompt of `request`: token ids, multimodal inputs, LoRA and cache salt.

    Without the adapter's files two nodes name a prompt alike even where it is not the same, and so find out at once.
    """
    digest = blake2b(array("q", request.prompt_token_ids or ()).tobytes(), digest_size=16)
    for feature in request.mm_features:
        place = feature.mm_position
        digest.update(f"|mm {feature.identifier} {place.offset} {place.length}".encode())
    if request.lora_request is not None:
        name = adapter_name(request.lora_request) if with_files else request.lora_request.lora_name
        digest.update(f"|lora {name}".encode())
    if request.cache_salt:
        digest.update(f"|salt {request.cache_salt}".encode())
    return digest.digest()
