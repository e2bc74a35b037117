"""KV handed over between nodes of several ranks; `make test-matrix` has nodes of every shape."""

import pytest

from tests.e2e.conftest import Trio
from tests.e2e.stack import Stack
from tests.matrix.cells import REPRESENTATIVE, cell_of, name_of
from tests.matrix.trial import Reference, run
from tests.support.pairwise import Case

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(400)]

CHOSEN = (0, 4, 9, 13, 17)  # of the prompts that all tests share, the shortest and the longest among them


@pytest.mark.parametrize("case", REPRESENTATIVE, ids=name_of)
def test_a_hand_over_between_several_ranks_is_exact(stack: Stack, trio: Trio, case: Case) -> None:
    """It gives the tokens of one plain server, and leaves nothing behind."""
    reference = Reference([trio.prompts[i] for i in CHOSEN], [trio.reference[i] for i in CHOSEN])

    assert run(stack, cell_of(case), reference) == []
