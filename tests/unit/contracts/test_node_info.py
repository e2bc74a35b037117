import msgspec
import pytest

from baton.contracts.node_info import differences
from tests.support.described import fingerprint

OURS = fingerprint(128, dtype="bfloat16", attention="CPU_ATTN/vec")


def test_equal_fingerprints_do_not_differ() -> None:
    """Two nodes of the same make may exchange KV."""
    assert differences(OURS, OURS) == []


def test_every_difference_is_named_with_both_values() -> None:
    """A refusal tells the person on either side what to change."""
    theirs = fingerprint(96, attention="CPU_ATTN/vec")

    assert differences(OURS, theirs) == [
        "dtype: 'bfloat16' here, 'float32' there",
        "block_size_tokens: 128 here, 96 there (give both nodes the same --block-size)",
    ]


@pytest.mark.parametrize("theirs", ["float16", "float32", "fp8", "fp8_e5m2"])
def test_another_type_of_kv_is_another_cache(theirs: str) -> None:
    """Its bytes would be read as something else."""
    other = msgspec.structs.replace(OURS, kv_cache_dtype=theirs)

    assert differences(OURS, other) == [f"kv_cache_dtype: 'auto' here, '{theirs}' there"]


@pytest.mark.parametrize("tokens", [(64, 32), (32, 64), (16, 128)])
def test_block_sizes_may_differ_but_on_cpus(tokens: tuple[int, int]) -> None:
    """A CPU's blocks of another size would travel in thousands of pieces of some hundred bytes."""
    cpu = [msgspec.structs.replace(OURS, block_size_tokens=each) for each in tokens]
    gpu = [msgspec.structs.replace(each, attention="FLASH_ATTN") for each in cpu]

    assert differences(*cpu) == [
        f"block_size_tokens: {tokens[0]} here, {tokens[1]} there (give both nodes the same --block-size)"
    ]
    assert differences(*gpu) == []
