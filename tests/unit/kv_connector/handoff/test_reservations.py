"""What a decode rank reserves, and what a prefill rank makes of that."""

import pytest

from baton.kv_connector.handoff.incoming import BlockReservation, Phase
from baton.kv_connector.handoff.producer import REVOKED
from baton.kv_connector.protocol.messages import Commit, Fail, Reserve, Revoke
from tests.unit.kv_connector.handoff.machines import HASH, WISH, Pair, reservation, reserved


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


UNFIT = {
    "hash": WISH._replace(prompt_hash=b"another"),
    "tokens": WISH._replace(tokens=41),
    "off a block": WISH._replace(from_token=8),
    "before the prompt": WISH._replace(from_token=-16, blocks=[[3, 4, 5, 6]]),
    "nothing": WISH._replace(from_token=48, blocks=[[]]),
    "too few blocks": WISH._replace(blocks=[[4, 5]]),
    "another group": WISH._replace(blocks=[[4, 5, 6], [7, 8]]),
    "a hole": WISH._replace(blocks=[[4, 0, 6]]),
    "no group": WISH._replace(blocks=[]),
}


@pytest.mark.parametrize("wish", UNFIT.values(), ids=UNFIT)
def test_a_reservation_that_does_not_fit_fails_cleanly(wish: BlockReservation) -> None:
    """I7: no byte moves for another prompt or into a list of another length."""
    pair = Pair()
    pair.start()
    pair.write()

    pair.reserve(wish=wish)

    assert not pair.pushes()
    [resolved] = pair.resolved()
    assert not resolved.ok
    assert pair.d.closed == ["d-t"]


@pytest.mark.parametrize(("has", "theirs", "ours"), [(1, [5, 6], [2, 3]), (2, [6], [3])])
def test_only_missing_blocks_travel_and_are_digested(has: int, theirs: list[int], ours: list[int]) -> None:
    """D has the first blocks already: P's begin with the first one that D wants."""
    pair = Pair()
    pair.p._verify = lambda _: True
    pair.start()
    pair.write()
    pair.reserve(wish=WISH._replace(from_token=has * 16, blocks=[theirs]))

    [push] = pair.pushes()
    pair.p.push_done(push, True, 0.0)

    assert [(piece.layer, piece.start, piece.stop) for piece in push.pieces] == [
        (layer, 0, len(theirs)) for layer in range(2)
    ]
    assert pair.p.to_digest[0].pushed_blocks(16) == ours


@pytest.mark.parametrize("ask", [Revoke(transfer_id="t", epoch=2), reservation(epoch=2)], ids=["revoke", "reserve"])
def test_another_epoch_does_not_touch_the_reserved_one(ask: Revoke | Reserve) -> None:
    """It was never written to, so it may be given back. The reserved one goes on; its revoke is answered whenever it comes."""
    pair = reserved()

    pair.to_p(ask)
    assert "t" in pair.p.transfers
    pair.to_p(Revoke(transfer_id="t", epoch=1))
    pair.to_p(Revoke(transfer_id="t", epoch=1))

    answers = [m.body for _, m in pair.p.outbox if isinstance(m.body, Fail)]
    assert answers == [
        Fail(transfer_id="t", epoch=2, dirty=False, reason="another epoch is reserved"),
        *[Fail(transfer_id="t", epoch=1, dirty=False, reason=REVOKED)] * 2,
    ]
