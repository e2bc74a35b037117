"""Which KV cache groups there are, and which are refused at start, with the reason."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    MambaSpec,
    SlidingWindowSpec,
)

from kv_connector.errors import ConfigError
from kv_connector.groups import ONE_GROUP, Group, groups_of, refuse_beside
from kv_connector.protocol import MAX_GROUPS

COMMON: dict[str, Any] = {"num_kv_heads": 2, "head_size": 8, "dtype": torch.float32}
FULL = FullAttentionSpec(block_size=16, **COMMON)
WINDOW = SlidingWindowSpec(block_size=16, sliding_window=64, **COMMON)
RETAINING = SlidingWindowSpec(block_size=16, sliding_window=64, extra_retained_tokens=2, **COMMON)
CHUNKED = ChunkedLocalAttentionSpec(block_size=16, attention_chunk_size=64, **COMMON)
STATE = MambaSpec(block_size=16, shapes=((2, 2),), dtypes=(torch.float32,))


def cache(*specs: Any) -> Any:
    """A KV cache configuration with a group for each spec."""
    return SimpleNamespace(kv_cache_groups=[SimpleNamespace(kv_cache_spec=spec) for spec in specs])


def test_a_group_says_how_far_its_tokens_read() -> None:
    """As the engine's own configuration has it; layers of one group may differ in size."""
    several = SimpleNamespace(kv_cache_specs={"a": WINDOW, "b": WINDOW}, block_size=16)

    assert groups_of(cache(FULL), 16) == ONE_GROUP
    assert groups_of(cache(WINDOW, FULL, several), 16) == (Group(64), Group(), Group(64))


@pytest.mark.parametrize(
    ("specs", "words"),
    [
        ([CHUNKED], "kind ChunkedLocalAttentionSpec"),
        ([FULL, STATE], "kind MambaSpec"),
        ([RETAINING], "kind SlidingWindowSpec"),
        ([SimpleNamespace(kv_cache_specs={"a": FULL, "b": WINDOW}, block_size=16)], "windows of 0, 64 tokens"),
        (
            [FULL, SlidingWindowSpec(block_size=32, sliding_window=64, **COMMON)],
            r"different numbers of tokens \(16, 32;",
        ),
        ([FULL] * (MAX_GROUPS + 1), "at most 16"),
    ],
    ids=["chunked local attention", "a recurrent state", "it keeps more", "two windows", "other blocks", "too many"],
)
def test_other_caches_are_refused(specs: list[Any], words: str) -> None:
    """The sentence names what it is."""
    with pytest.raises(ConfigError, match=words):
        groups_of(cache(*specs), 16)


@pytest.mark.parametrize("specs", [[WINDOW], [FULL, FULL]], ids=["a window", "two groups"])
def test_an_older_vllm_runs_neither_windows_nor_groups(specs: list[Any]) -> None:
    """It cannot be told which requests' KV did not arrive; one group without a window goes on as before."""
    assert groups_of(cache(FULL), 16, can_fail=False) == ONE_GROUP
    with pytest.raises(ConfigError, match=r"vLLM 0\.30"):
        groups_of(cache(*specs), 16, can_fail=False)


@pytest.mark.parametrize("groups", [(Group(64),), (Group(), Group())], ids=["a window", "two groups"])
def test_another_connector_beside_is_refused(groups: tuple[Group, ...]) -> None:
    """It has been tried with one group without a window alone."""
    refuse_beside(ONE_GROUP)
    with pytest.raises(ConfigError, match="beside"):
        refuse_beside(groups)
