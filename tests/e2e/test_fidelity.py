"""Answers through Baton are those of one vLLM server."""

import pytest

from tests.e2e.conftest import Trio
from tests.e2e.fidelity import CHUNKS_TOKENS, float32_cells, problems_of
from tests.e2e.stack import Stack

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

SOME = slice(0, 13, 3)  # of the prompts that all tests share: five, of 1 to 370 tokens


@pytest.mark.parametrize(
    "chunk", [pytest.param(chunk, marks=() if chunk == 256 else pytest.mark.exhaustive) for chunk in CHUNKS_TOKENS]
)
def test_every_cell_is_exact(stack: Stack, trio: Trio, chunk: int) -> None:
    """Alone and 16 at once, cold and warm: same tokens, same logprobs, every byte accounted for."""
    cells = float32_cells(stack, trio.prompts[SOME], trio.reference[SOME], chunk)

    assert problems_of(cells) == []
