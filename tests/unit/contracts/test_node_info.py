from contracts.node_info import Fingerprint, differences

OURS = Fingerprint(
    weights="w1",
    dtype="bfloat16",
    kv_cache_dtype="auto",
    quantization="",
    rope="r1",
    attention="CPU_ATTN/vec",
    block_size_tokens=128,
)


def test_equal_fingerprints_do_not_differ() -> None:
    """Two nodes of the same make may exchange KV."""
    assert differences(OURS, OURS) == []


def test_every_difference_is_named_with_both_values() -> None:
    """A refusal tells the person on either side what to change."""
    theirs = Fingerprint(
        weights="w1",
        dtype="float32",
        kv_cache_dtype="auto",
        quantization="",
        rope="r1",
        attention="CPU_ATTN/vec",
        block_size_tokens=96,
    )

    assert differences(OURS, theirs) == [
        "dtype: 'bfloat16' here, 'float32' there",
        "block_size_tokens: 128 here, 96 there",
    ]
