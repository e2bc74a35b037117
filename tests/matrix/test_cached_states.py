"""Recurrent layers with vLLM's prefix cache on: prompts that a node has in part, and requests that are preempted, are exact."""

from collections.abc import Iterator

import pytest

from tests.e2e.stack import Server, Stack
from tests.matrix.kinds import CELLS, Kind, Pair, pair_of

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(600)]

KINDS = [
    Kind("falcon-h1", cached=(True, True)),
    Kind("falcon-h1", cached=(True, False)),
    Kind("falcon-h1", cached=(False, True)),
    Kind("nemotron-h", cached=(True, True)),
    Kind("qwen3-next", cached=(True, True)),
]


@pytest.fixture(scope="module")
def pair(stack: Stack, request: pytest.FixtureRequest) -> Iterator[Pair]:
    """A prefill node, a decode node and a proxy with one model, and what one plain server said."""
    with pair_of(stack, request.param) as running:
        yield running


@pytest.mark.exhaustive
@pytest.mark.parametrize("cell", [*CELLS, "again"])
@pytest.mark.parametrize("pair", KINDS, indirect=True, ids=str)
def test_states_in_the_prefix_cache_are_exact(pair: Pair, cell: str) -> None:
    """Prompts that come again have their attention's blocks on D, and no state at the end of these: it comes from P."""
    if cell != "again":
        assert pair.run(cell) == []
        return
    assert pair.run("chunked") == []
    before = [hits(node) for node in (pair.prefill, pair.decode)]

    assert pair.run("chunked") == []

    more = [hits(node) > earlier for node, earlier in zip((pair.prefill, pair.decode), before, strict=True)]
    assert more == [*pair.kind.cached]


def hits(node: Server) -> float:
    """How many tokens a node has found in its own prefix cache so far."""
    return node.metrics().get("vllm:prefix_cache_hits_total", 0.0)
