import pytest

from baton.node.startup.kv_cache import MIN_BYTES, UNKNOWN_MODEL_BYTES, default_bytes

QWEN = {  # 12 KiB per token in bfloat16
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "hidden_size": 896,
    "max_position_embeddings": 32768,
    "torch_dtype": "bfloat16",
}
TOKEN_BYTES = 2 * 24 * 2 * 64 * 2


def test_two_requests_of_the_greatest_length_fit() -> None:
    """A server refuses to start if not even one does."""
    assert default_bytes(QWEN, None, None) == 2 * TOKEN_BYTES * 32768


def test_float32_takes_twice_as_much() -> None:
    """The flag wins over the model's own dtype."""
    assert default_bytes(QWEN, "float32", None) == 2 * default_bytes(QWEN, "auto", None)


def test_a_shorter_length_takes_less_but_never_less_than_the_minimum() -> None:
    """`--max-model-len` counts; a tiny model still gets a pool worth testing with."""
    assert default_bytes(QWEN, None, "16384") == 2 * TOKEN_BYTES * 16384
    assert default_bytes(QWEN, None, "512") == MIN_BYTES


def test_the_head_size_may_be_given() -> None:
    """Some models' heads are not hidden size by head count; without KV heads, all heads have KV."""
    model = {key: value for key, value in QWEN.items() if key != "num_key_value_heads"} | {"head_dim": 128}
    assert default_bytes(model, None, None) == 2 * (2 * 24 * 14 * 128 * 2) * 32768


@pytest.mark.parametrize(
    ("model", "length"), [(None, None), ({}, None), ({**QWEN, "num_hidden_layers": None}, None), (QWEN, "auto")]
)
def test_an_unknown_shape_or_length_gets_a_fixed_size(model: dict[str, object] | None, length: str | None) -> None:
    """Better a guess than all of the machine's memory."""
    assert default_bytes(model, None, length) == UNKNOWN_MODEL_BYTES
