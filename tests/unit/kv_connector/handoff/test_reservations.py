"""What a decode rank reserves, and when."""

import pytest

from baton.kv_connector.handoff.incoming import Phase
from baton.kv_connector.protocol.messages import Commit, Fail, Reserve
from tests.unit.kv_connector.handoff.machines import HASH, WISH, Pair


def test_nothing_is_reserved_before_the_blocks_are_zeroed() -> None:
    """I6: RESERVE goes out when the device has done what was queued before."""
    pair = Pair()
    pair.watch()
    pair.d.prepare("d-t", 1, WISH, 0.0)
    pair.d.domains.retire("e0", 0.0)
    pair.d.engine_added(0, "fresh")  # looks whether anything waits for one
    pair.talk()
    assert not pair.heard_of(Reserve)

    pair.d.zeroed(["d-t", "unknown"], 0.0)
    pair.talk()

    assert len(pair.heard_of(Reserve)) == 1


def test_nothing_is_reserved_without_an_engine() -> None:
    """The reservation waits for the domain's fresh engine, and names it."""
    pair = Pair()
    pair.d.domains.retire("e0", 0.0)
    pair.reserve()
    assert not pair.heard_of(Reserve)

    pair.d.engine_added(0, "fresh")

    assert pair.d.transfers["t"].phase is Phase.RESERVED
    assert pair.d.transfers["t"].engine == "fresh"


@pytest.mark.parametrize(
    ("outcome", "reason"),
    [
        (Fail(transfer_id="t", epoch=0, dirty=False, reason="preempted"), "preempted"),
        (Commit(transfer_id="t", epoch=0, tokens=40, prompt_hash=HASH), "committed without a reservation"),
    ],
)
def test_an_outcome_before_the_reservation_fails_the_request(outcome: Fail | Commit, reason: str) -> None:
    """It is told again if it crosses the allocation: vLLM waits now, so it is answered, and the blocks come back."""
    pair = Pair()
    pair.watch()

    pair.to_d(Fail(transfer_id="t", epoch=1, dirty=False, reason="of an epoch that D has not drawn"))
    assert not pair.resolved()

    pair.to_d(outcome)
    [resolved] = pair.resolved()
    assert (resolved.ok, resolved.reserved, resolved.reason) == (False, False, reason)
    assert pair.d.closed == []

    pair.d.prepare("d-t", 1, WISH, 0.0)
    pair.d.zeroed(["d-t"], 0.0)
    assert [resolved.reserved for resolved in pair.resolved()] == [True]
    assert pair.d.closed == ["d-t"]
    assert not pair.d.transfers


def test_an_outcome_that_crosses_the_allocation_gives_the_blocks_back() -> None:
    """P had not heard of the epoch, so its answer names none."""
    pair = Pair()
    pair.watch()
    pair.d.prepare("d-t", 2, WISH, 0.0)

    pair.to_d(Fail(transfer_id="t", epoch=0, dirty=False, reason="preempted"))

    assert [(resolved.reserved, resolved.reason) for resolved in pair.resolved()] == [(True, "preempted")]
    assert pair.d.closed == ["d-t"]
