"""How much memory the KV cache gets on a CPU when the operator does not say.

vLLM's own default takes nearly all of the machine's memory, which two nodes on one machine cannot both have.
"""

from collections.abc import Mapping
from typing import Any

from baton.contracts.probe import MIB

MIN_BYTES = 256 * MIB
UNKNOWN_MODEL_BYTES = 2048 * MIB
FULL_LENGTH_REQUESTS = 2  # that many requests of the greatest length fit

_ITEM_BYTES = {"float32": 4, "float": 4}  # everything else that a CPU computes in has two bytes


def default_bytes(model: Mapping[str, Any] | None, dtype: str | None, max_model_len: str | None) -> int:
    """Return the size of the KV cache for the model of a `config.json`, in view of `--dtype` and `--max-model-len`."""
    model = model or {}
    try:
        length_tokens = int(max_model_len or model["max_position_embeddings"])
        needed = FULL_LENGTH_REQUESTS * _token_bytes(model, dtype) * length_tokens
    except (KeyError, TypeError, ValueError):
        return UNKNOWN_MODEL_BYTES
    return max(MIN_BYTES, needed)


def _token_bytes(model: Mapping[str, Any], dtype: str | None) -> int:
    heads = int(model["num_attention_heads"])
    kv_heads = int(model.get("num_key_value_heads") or heads)
    head_size = int(model.get("head_dim") or int(model["hidden_size"]) // heads)
    if dtype in (None, "auto"):
        dtype = str(model.get("dtype") or model.get("torch_dtype") or "bfloat16")
    return 2 * int(model["num_hidden_layers"]) * kv_heads * head_size * _ITEM_BYTES.get(str(dtype), 2)
