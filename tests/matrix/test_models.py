"""KV of every kind of model is handed over exactly: short prompts, chunked ones, prefix hits, clients that leave."""

import asyncio
from collections.abc import Iterator

import pytest

from tests.e2e.stack import Stack
from tests.matrix.kinds import CELLS, Kind, Pair, pair_of
from tests.matrix.models import MODELS

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def pair(stack: Stack, request: pytest.FixtureRequest) -> Iterator[Pair]:
    """A prefill node, a decode node and a proxy with one model, and what one plain server said."""
    kind: Kind = request.param
    with pair_of(stack, kind) as running:
        yield running


def _kinds(*names: str) -> list[Kind]:
    return [Kind(name) for name in names]


# One with a latent cache: the others differ less from the embedded model.
@pytest.mark.parametrize("pair", _kinds("mla-v3"), indirect=True, ids=str)
def test_a_representative_model_is_exact_in_every_way(pair: Pair) -> None:
    """Short, chunked, with a cached prefix, with a client that leaves."""
    assert [problem for cell in CELLS for problem in asyncio.run(pair.run(cell))] == []


@pytest.mark.matrix
@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize(
    "pair",
    [*_kinds(*MODELS), Kind("mla-v2", ("-tp", "2"), ()), Kind("mla-v2", (), ("-tp", "2"))],
    indirect=True,
    ids=str,
)
def test_every_model_is_exact(pair: Pair, cell: str) -> None:
    """Each model in each way; MLA's cache, which every rank has whole, also between nodes of one rank and of two."""
    assert asyncio.run(pair.run(cell)) == []
