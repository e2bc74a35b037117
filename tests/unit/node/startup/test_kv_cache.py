from typing import Any

import pytest

from baton.node.startup.kv_cache import MIN_BYTES, UNKNOWN_MODEL_BYTES, default_bytes

QWEN: dict[str, Any] = {
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "hidden_size": 896,
    "max_position_embeddings": 32768,
    "torch_dtype": "bfloat16",
}
TOKEN_BYTES = 2 * 24 * 2 * 64 * 2  # 12 KiB
WIDE = {key: value for key, value in QWEN.items() if key != "num_key_value_heads"} | {"head_dim": 128}


@pytest.mark.parametrize(
    ("model", "dtype", "length", "expected"),
    [
        (QWEN, None, None, 2 * TOKEN_BYTES * 32768),  # two requests of the greatest length
        (QWEN, "auto", None, 2 * TOKEN_BYTES * 32768),
        (QWEN, "float32", None, 2 * 2 * TOKEN_BYTES * 32768),  # the flag wins over the model's own type
        (QWEN, None, "16384", 2 * TOKEN_BYTES * 16384),
        (QWEN, None, "512", MIN_BYTES),  # a tiny pool would not be worth testing with
        # Heads that are not hidden size by head count; without KV heads, all heads have KV.
        (WIDE, None, None, 2 * (2 * 24 * 14 * 128 * 2) * 32768),
        # Better a guess than all of the machine's memory.
        (None, None, None, UNKNOWN_MODEL_BYTES),
        ({}, None, None, UNKNOWN_MODEL_BYTES),
        ({**QWEN, "num_hidden_layers": None}, None, None, UNKNOWN_MODEL_BYTES),
        (QWEN, None, "auto", UNKNOWN_MODEL_BYTES),
    ],
)
def test_a_cache_has_room_for_two_requests(
    model: dict[str, Any] | None, dtype: str | None, length: str | None, expected: int
) -> None:
    assert default_bytes(model, dtype, length) == expected
