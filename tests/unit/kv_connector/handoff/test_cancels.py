"""Transfers that are cancelled, revoked or given up."""

from collections.abc import Callable

import pytest

from baton.kv_connector.handoff.consumer import MAX_DECLINED
from baton.kv_connector.protocol.messages import Beat, Body, Commit, Fail, Hello, Reserve, Revoke
from tests.unit.kv_connector.handoff.machines import (
    PEER,
    SETTINGS,
    WISH,
    Pair,
    make_producer,
    outcome,
    ready_to_push,
    reserved,
    verifying,
)


def test_cancel_before_the_reservation_was_sent() -> None:
    """No writer is left: the blocks come back at once, P hears that nothing is wanted. A request may have its own reason."""
    pair = Pair()
    pair.watch()
    pair.d.prepare("d-t", 1, WISH, 0.0)

    pair.d.cancel("d-t", 0.0, "the device failed")
    pair.d.zeroed(["d-t"], 0.0)
    pair.talk()

    [resolved] = pair.resolved()
    assert (resolved.ok, resolved.reserved, resolved.reason) == (False, True, "the device failed")
    assert pair.d.closed == ["d-t"]
    assert not pair.heard_of(Reserve)
    assert pair.heard_of(Revoke) == [Revoke(transfer_id="t", epoch=0)]
    pair.d.watch("t", "another", PEER, 0.0)
    pair.d.cancel("d-t", 0.0)
    assert list(pair.d.transfers) == ["t"], "what is said of a request that has ended is not said of the next one"


def test_cancel_of_a_reserved_epoch_waits_for_the_answer() -> None:
    """I3: the request is resolved at once, the blocks come back when P has stopped."""
    pair = ready_to_push()
    [push] = pair.pushes()

    pair.d.cancel("d-t", 0.0)
    pair.talk()
    assert [resolved.reason for resolved in pair.resolved()] == ["cancelled"]
    assert pair.d.closed == []
    pair.d.cancel("d-t", 0.0)
    pair.p.push_done(push, True, 0.0)
    pair.talk()

    assert pair.d.closed == ["d-t"]
    assert not pair.resolved()
    assert not pair.d.fences


@pytest.mark.parametrize(("arrived", "what"), [(False, "no commit"), (True, "not verified")])
def test_a_transfer_that_takes_too_long_is_given_up(arrived: bool, what: str) -> None:
    """I5: it is revoked, and fails. So does one whose digests a device does not compute."""
    pair = verifying() if arrived else reserved()

    pair.after(120.5)

    assert [resolved.reason for resolved in pair.resolved()] == [f"{what} within 120 s"]
    assert pair.d.closed == ["d-t"]


@pytest.mark.parametrize("contact", ["the first", "an open session", "another process at a known address"])
def test_what_is_not_needed_is_revoked_until_p_has_answered(contact: str) -> None:
    """One token, or a prefix that D had. Regressions: P was not told at first contact, or a lost `Revoke` was never sent again."""
    pair = Pair()
    if contact != "the first":
        pair.watch("earlier")
    if contact == "another process at a known address":
        pair.p = make_producer(12)
        pair.loses = lambda body: isinstance(body, Hello)
        pair.after(0.5)
    lost: list[Body] = []
    pair.loses = lambda body: isinstance(body, Revoke | Beat) and len(lost) < 2 and not lost.append(body)  # type: ignore[func-returns-value]  # by its effect
    pair.start()
    pair.p.hold("p-t", 0.0)
    pair.d.watch("t", "d-t", PEER, 0.0)
    pair.d.announce()
    pair.d.cancel("d-t", 0.0)
    pair.talk()
    assert [type(body) for body in lost] == [Beat, Revoke]
    assert pair.p.released == []

    pair.after(0.5)

    assert pair.p.released == ["p-t"]
    assert not pair.d._declined
    pair.after(0.5)
    assert pair.heard_of(Revoke) == [Revoke(transfer_id="t", epoch=0)]


def test_what_is_wanted_again_is_not_revoked() -> None:
    """Another request has the transfer id, and P has not heard of the first one's end."""
    pair = Pair()
    pair.loses = lambda _: True
    pair.watch()
    pair.d.cancel("d-t", 0.0)
    pair.talk()

    pair.loses = lambda _: False
    pair.d.watch("t", "another", PEER, 0.0)
    pair.after(1.0)

    assert not pair.heard_of(Revoke)
    assert "t" in pair.p.transfers


@pytest.mark.parametrize("refused", [False, True])
def test_nothing_is_kept_to_be_said_to_a_peer_that_never_opens_a_session(refused: bool) -> None:
    """It does not answer, or does not fit."""
    pair = Pair(make_producer(refuse="other weights" if refused else ""))
    pair.loses = lambda _: not refused
    pair.d.watch("t", "d-t", PEER, 0.0)
    pair.d.announce()
    pair.d.cancel("d-t", 0.0)

    pair.after(SETTINGS.peer_timeout_s + 0.5)

    assert not pair.d._declined


def test_what_is_kept_to_be_said_to_a_peer_that_does_not_answer_is_bounded() -> None:
    """Requests for it come and go; P lets go by itself of those that it never hears of."""
    pair = Pair()
    pair.loses = lambda _: True
    for number in range(3 * MAX_DECLINED):
        pair.d.watch(f"t{number}", f"d-t{number}", PEER, 0.0)
        pair.d.cancel(f"d-t{number}", 0.0)

    assert [len(kept) for kept in pair.d._declined.values()] == [MAX_DECLINED]
    assert not pair.d.transfers


GIVEN_UP: dict[str, Callable[[Pair], object]] = {
    "void": lambda pair: pair.p.void("p-t", "preempted", 0.0),
    "cancelled": lambda pair: pair.p.cancel("t", 0.0),
}


@pytest.mark.parametrize("ok", [True, False])
@pytest.mark.parametrize("give_up", GIVEN_UP.values(), ids=GIVEN_UP)
def test_an_epoch_that_is_given_up_waits_for_its_pushes(give_up: Callable[[Pair], object], ok: bool) -> None:
    """I2, I3: it has failed cleanly only once all of them returned 0; D is told then, and the blocks are released."""
    pair = ready_to_push()
    pair.p.hold("p-t", 0.0)
    first, second = pair.next_push(3), pair.next_push(2)
    give_up(pair)
    give_up(pair)
    assert pair.p.next_push(lambda _: 3) is None
    pair.p.push_done(first, True, 0.0)
    assert not pair.p.ended

    pair.p.push_done(second, ok, 0.0)
    pair.talk()

    fail = outcome(pair)
    assert isinstance(fail, Fail)
    assert fail.dirty is not ok
    assert pair.p.released == ["p-t"]
    assert [(resolved.ok, resolved.reserved) for resolved in pair.resolved()] == [(False, True)]


def test_what_happens_to_an_ended_request_is_ignored() -> None:
    """The scheduler and the device speak of requests whose transfer has ended."""
    pair = reserved()
    pair.p.void("p-t", "preempted", 0.0)

    pair.p.void("p-t", "preempted", 0.0)
    pair.p.add_source_blocks("p-t", [9])
    pair.p.ready("p-t", 0, 3, 0.0)
    pair.start()

    assert not pair.p.transfers
    assert len(pair.p.ended) == 1


@pytest.mark.parametrize("asks_first", [True, False])
def test_a_prompt_that_will_not_be_computed_is_failed(asks_first: bool) -> None:
    """The decode node that waits for it is told, whether it asked before or asks afterwards."""
    pair = Pair()
    if asks_first:
        pair.reserve()
    pair.p.abandon("t", "not for us", 0.0)
    pair.p.abandon("t", "not for us", 0.0)
    pair.talk()
    if not asks_first:
        pair.reserve()

    assert [resolved.reason for resolved in pair.resolved()] == ["not for us"]
    assert pair.d.closed == ["d-t"]


def test_a_cancel_after_the_commit_changes_nothing() -> None:
    """The decode rank may still ask for the outcome: it stays a commit."""
    pair = ready_to_push()
    pair.push()

    assert not pair.p.cancel("t", 0.0)
    pair.to_p(Revoke(transfer_id="t", epoch=1))

    assert isinstance(pair.p.outbox[-1][1].body, Commit)


def test_a_revoke_whose_reserve_was_lost_is_answered_at_once() -> None:
    """Regression: it was answered for epoch 0, which D ignores; the blocks came back a beat later."""
    pair = Pair()
    pair.start()
    pair.watch()
    pair.loses = lambda body: isinstance(body, Reserve)
    pair.d.prepare("d-t", 1, WISH, 0.0)
    pair.d.zeroed(["d-t"], 0.0)
    pair.talk()

    pair.d.cancel("d-t", 0.0)
    pair.talk()

    assert pair.d.closed == ["d-t"]
    assert not pair.p.transfers
