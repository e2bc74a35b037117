"""References on blocks that several ranks' peers may write to."""

from typing import Any

from baton.kv_connector.scheduler_side.ledger import ReservationLedger
from tests.unit.kv_connector.scheduler_fakes import FakePool


def test_blocks_are_let_go_by_the_last_rank_and_a_request_of_the_same_name_begins_from_nothing() -> None:
    """I3: each time. What is not held is not let go."""
    ledger, pool = ReservationLedger(ranks=2), FakePool(5)
    made: Any = pool
    ledger.bind(made)
    for _ in range(2):
        blocks: Any = pool.blocks[2:4]
        ledger.take("r", blocks)
        assert (len(ledger), ledger.blocks_held("r"), ledger.total_blocks()) == (1, 2, 2)
        assert ledger.reservations() == {"r": [2, 3]}

        assert ledger.release("r") == []
        assert pool.get_num_free_blocks() == 2
        assert ledger.release("r") == [2, 3]
        assert pool.get_num_free_blocks() == 4

    assert (len(ledger), ledger.blocks_held("r"), ledger.total_blocks(), ledger.reservations()) == (0, 0, 0, {})
    assert [ledger.release("gone") for _ in range(2)] == [[], []]
