"""Answers through Baton are those of one vLLM server."""

import pytest

from tests.e2e.fidelity import run
from tests.e2e.stack import Stack

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]


def test_every_cell_is_exact(stack: Stack) -> None:
    """Alone and 16 at once, whole and chunked, cold and warm: same tokens, same logprobs, every byte accounted for."""
    cells = run(stack, 8)

    assert [f"{cell.name}: {problem}" for cell in cells for problem in cell.problems] == []
