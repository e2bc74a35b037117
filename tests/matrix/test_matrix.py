"""KV handed over between nodes of every shape gives the tokens of one plain server, and leaves nothing behind."""

import pytest

from tests.e2e.stack import Stack
from tests.matrix.cells import cases, cell_of, name_of
from tests.matrix.trial import Reference, run
from tests.support.pairwise import Case

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(400)]


@pytest.mark.matrix
@pytest.mark.parametrize("case", cases(), ids=name_of)
def test_every_cell_is_exact(stack: Stack, reference: Reference, case: Case) -> None:
    """Every two values of two axes meet in one of these."""
    assert run(stack, cell_of(case), reference) == []
