"""Which KV cache groups there are, and which are refused at start, with the reason."""

from dataclasses import replace
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

from baton.kv_connector.errors import ConnectorConfigError
from baton.kv_connector.layout.groups import (
    CACHED_STATES,
    ONE_GROUP,
    STATE,
    Group,
    block_tokens_of,
    ends_with_blocks,
    groups_of,
    have_states,
    refuse_beside,
)
from baton.kv_connector.protocol.messages import MAX_GROUPS

COMMON: dict[str, Any] = {"num_kv_heads": 2, "head_size": 8, "dtype": torch.float32}
FULL = FullAttentionSpec(block_size=16, **COMMON)
WINDOW = SlidingWindowSpec(block_size=16, sliding_window=64, **COMMON)
RETAINING = SlidingWindowSpec(block_size=16, sliding_window=64, extra_retained_tokens=2, **COMMON)
CHUNKED = ChunkedLocalAttentionSpec(block_size=16, attention_chunk_size=64, **COMMON)
RECURRENT = MambaSpec(block_size=4096, shapes=((2, 2),), dtypes=(torch.float32,))
ALIGNED = MambaSpec(block_size=16, shapes=((2, 2),), dtypes=(torch.float32,), mamba_cache_mode="align")


def cache(*specs: Any) -> Any:
    """A KV cache configuration with a group for each spec."""
    return SimpleNamespace(kv_cache_groups=[SimpleNamespace(kv_cache_spec=spec) for spec in specs])


def alike(*specs: Any) -> Any:
    """A spec for a group of layers that differ in size."""
    return SimpleNamespace(kv_cache_specs=dict(enumerate(specs)), block_size=specs[0].block_size)


@pytest.mark.parametrize(
    ("specs", "groups"),
    [
        ([FULL], ONE_GROUP),
        ([FULL] * MAX_GROUPS, (Group(),) * MAX_GROUPS),
        ([WINDOW, FULL, alike(WINDOW, WINDOW)], (Group(64), Group(), Group(64))),
        ([CHUNKED, FULL], (Group(-64), Group())),
        # a long block stands for so many scheduler blocks that all groups' blocks have as many bytes
        ([FULL, replace(WINDOW, block_size=32)], (Group(), Group(64, places=2))),
        # a state is one block, as long as a request may be, and more for drafted tokens
        ([RECURRENT, FULL, alike(RECURRENT, RECURRENT)], (STATE, Group(), STATE)),
        ([replace(RECURRENT, num_speculative_blocks=3), FULL], (STATE._replace(drafts=3), Group())),
        # in the prefix cache one at the end of each block, and the running one; alone too
        ([ALIGNED, FULL, alike(ALIGNED, ALIGNED)], (CACHED_STATES, Group(), CACHED_STATES)),
        ([ALIGNED], (CACHED_STATES,)),
    ],
)
def test_a_group_says_how_far_its_tokens_read(specs: list[Any], groups: tuple[Group, ...]) -> None:
    """As the engine's own configuration has it; layers of one group may differ in size."""
    assert groups_of(cache(*specs), 16) == groups


def test_states_are_known() -> None:
    """Whatever the size of the others' blocks."""
    assert groups_of(cache(RECURRENT), 4096) == (STATE,)
    assert have_states((Group(), STATE))
    assert have_states((Group(), CACHED_STATES))
    assert not have_states((Group(64), Group()))


def test_a_single_group_has_blocks_of_any_size() -> None:
    """There is no other with which they would have to agree."""
    assert groups_of(cache(FULL), 32) == ONE_GROUP


@pytest.mark.parametrize(
    ("spec", "name", "group"),
    [(replace(FULL), "tokens_per_state", Group()), (replace(WINDOW), "extra_retained_tokens", Group(64))],
)
def test_a_vllm_that_does_not_know_an_exception_is_served(
    monkeypatch: pytest.MonkeyPatch, spec: Any, name: str, group: Group
) -> None:
    """Older versions have no number for it, and do not do it."""
    vars(spec).pop(name, None)
    for kind in [each for each in type(spec).__mro__ if name in vars(each)]:
        monkeypatch.delattr(kind, name)

    assert not hasattr(spec, name)
    assert groups_of(cache(spec), 16) == (group,)


REFUSED: dict[str, tuple[list[Any], str]] = {
    "states of all tokens": ([FULL, replace(ALIGNED, mamba_cache_mode="all")], "--mamba-cache-mode align"),
    "states further apart than blocks": ([FULL, replace(ALIGNED, block_size=32)], "leave out --mamba-block-size"),
    "states and KV in one group": ([alike(FULL, RECURRENT)], "kind MambaSpec"),
    "it keeps more": ([RETAINING], "kind SlidingWindowSpec"),
    "two windows": ([alike(FULL, WINDOW)], "windows of 0, 64 tokens"),
    "blocks that do not divide": (
        [FULL, replace(WINDOW, block_size=24)],
        "16, 24 tokens, of which the shortest is no divisor",
    ),
    "long blocks beside a state": (
        [FULL, replace(WINDOW, block_size=32), RECURRENT],
        "16, 32 tokens, .* start with --disable-hybrid-kv-cache-manager",
    ),
    "too many": ([FULL] * (MAX_GROUPS + 1), "a hand-off has at most 16"),
}


@pytest.mark.parametrize(("specs", "words"), REFUSED.values(), ids=REFUSED)
def test_other_caches_are_refused(specs: list[Any], words: str) -> None:
    """The sentence names what it is."""
    with pytest.raises(ConnectorConfigError, match=words):
        groups_of(cache(*specs), 16)


@pytest.mark.parametrize(
    ("specs", "tokens"),
    [
        ([FULL], 128),
        ([ALIGNED, ALIGNED], 16),
        ([FULL, RECURRENT], 16),
        ([RECURRENT, RECURRENT], 4096),
        ([replace(WINDOW, block_size=32), FULL], 16),
    ],
    ids=[
        "as vLLM says",
        "of states in the prefix cache",
        "of the layers with attention",
        "of states alone",
        "the shortest",
    ],
)
def test_a_block_has_as_many_tokens_in_either_process(specs: list[Any], tokens: int) -> None:
    """Beside states vLLM's own number is another one in the scheduler's process than in a worker's."""
    engine: Any = SimpleNamespace(cache_config=SimpleNamespace(block_size=128))

    assert block_tokens_of(engine, cache(*specs)) == tokens


@pytest.mark.parametrize("specs", [[WINDOW], [FULL, FULL], [RECURRENT]], ids=["a window", "two groups", "a state"])
def test_an_older_vllm_runs_neither_windows_nor_groups(specs: list[Any]) -> None:
    """It cannot be told which requests' KV did not arrive; one group without a window goes on as before."""
    assert groups_of(cache(FULL), 16, can_fail=False) == ONE_GROUP
    with pytest.raises(ConnectorConfigError, match=r"vLLM 0\.30"):
        groups_of(cache(*specs), 16, can_fail=False)


@pytest.mark.parametrize(
    "groups", [(Group(64),), (Group(), Group()), (STATE,)], ids=["a window", "two groups", "a state"]
)
def test_another_connector_beside_is_refused(groups: tuple[Group, ...]) -> None:
    """It has been tried with one group without a window alone."""
    refuse_beside(ONE_GROUP)
    with pytest.raises(
        ConnectorConfigError, match=r"another KV connector beside Baton's has not been tried with .* leave out `beside`"
    ):
        refuse_beside(groups)


def test_only_a_group_of_long_blocks_ends_with_a_block_or_not() -> None:
    """Of three places of 16 tokens; another group's last block may be filled in part."""
    assert [ends_with_blocks((Group(), Group(places=3)), 16, tokens) for tokens in (96, 80)] == [True, False]
    assert ends_with_blocks(ONE_GROUP, 16, 17)
