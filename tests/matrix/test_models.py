"""KV of every kind of model is handed over exactly: short prompts, chunked ones, prefix hits, clients that leave."""

import pytest

from tests.matrix.grouped_models import GROUPED_MODELS
from tests.matrix.kinds import CELLS, Kind, Pair
from tests.matrix.models import MODELS

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(400)]

# A latent cache, windows in groups with blocks of two sizes, states: the others differ less from the embedded model.
REPRESENTATIVE = [Kind("mla-v3"), Kind("gemma4"), Kind("falcon-h1")]
# Several groups, or MLA's cache, which every rank has whole, between nodes of one rank and of two.
RANKS = [
    Kind("mla-v2", 2, 1),
    Kind("mla-v2", 1, 2),
    Kind("gemma3", 2, 1, divides_blocks=True),
    Kind("gemma3", 1, 2, divides_blocks=True),
    Kind("gpt-oss", 2, 2),
    Kind("llama4", 2, 2),
    Kind("gemma4", 2, 2),
    Kind("gemma4", 2, 1, divides_blocks=True),
    Kind("falcon-h1", 2, 1, divides_blocks=True),
    Kind("falcon-h1", 1, 2, divides_blocks=True),
    Kind("falcon-h1", 2, 2),
    Kind("granite-4", 2, 1, divides_blocks=True),  # B and C of a single group: each rank has them whole
    Kind("granite-4", 1, 2, divides_blocks=True),
    Kind("granite-4", 2, 2),
    Kind("qwen3-next", 2, 2),
    Kind("qwen3-next", 2, 1, divides_blocks=True),  # that it runs: there is nothing to compare
]


@pytest.mark.parametrize("pair", REPRESENTATIVE, indirect=True, ids=str)
def test_a_representative_model_is_exact_in_every_way(pair: Pair) -> None:
    """Short; chunked; and after clients that have left, when both nodes have what they cache of a prompt."""
    assert [problem for cell in ("short", "chunked", "abort") for problem in pair.run(cell)] == []


@pytest.mark.matrix
@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("pair", [*map(Kind, [*MODELS, *GROUPED_MODELS]), *RANKS], indirect=True, ids=str)
def test_every_model_is_exact(pair: Pair, cell: str) -> None:
    assert pair.run(cell) == []
