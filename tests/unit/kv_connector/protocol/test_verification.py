"""Which transfers are verified, and how a mismatch is told."""

import pytest

from baton.kv_connector.errors import ConnectorConfigError
from baton.kv_connector.protocol.verification import Sampling, differences, mismatch


def test_a_sample_is_drawn_from_the_id_alone() -> None:
    """About every N-th transfer, and the same ones at every call; all, or none."""
    ids = [f"{number:032x}" for number in range(10_000)]

    chosen = list(filter(Sampling.of("sample:10"), ids))

    assert 800 < len(chosen) < 1200
    assert list(filter(Sampling.of("sample:10"), ids)) == chosen
    assert all(map(Sampling.of("sample:1"), ids))
    assert all(map(Sampling.of("full"), ids))
    assert not any(map(Sampling.of("off"), ids))


@pytest.mark.parametrize("word", ["sample:0", "sample:", "sample", "half", "sample:-3", "sample:1.5", ""])
def test_another_word_is_refused(word: str) -> None:
    """A typing error must not turn verification off."""
    with pytest.raises(ConnectorConfigError, match="kv_verify"):
        Sampling.of(word)


def test_the_regions_that_differ_are_named() -> None:
    """Eight bytes a region, in their order; all of them if the peer counts other regions."""
    ours, theirs = b"111111112222222233333333", b"111111112222222x33333333"

    assert differences(["a", "b", "c"], ours, theirs) == ["b"]
    assert differences(["a", "b", "c"], ours, ours) == []
    assert differences(["a", "b"], bytes(16), bytes(8)) == ["a", "b"]


def test_a_mismatch_names_regions_and_blocks() -> None:
    """What a person needs to look further, at a bounded length."""
    text = mismatch([f"layer.{i}" for i in range(80)], [7, 8, 9, 3, 20, 21])

    assert text.endswith("layer.0, layer.1, layer.2 and 77 more in blocks 7-9, 3, 20-21")
    assert len(mismatch(["x"] * 1000, list(range(0, 2000, 2)))) < 200
