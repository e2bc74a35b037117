"""Prompts that are computed, and whose blocks are kept until nobody wants them."""

from collections.abc import Callable

import pytest

from baton.kv_connector.handoff.producer import CANCELLED, REVOKED
from baton.kv_connector.protocol.messages import Commit, Fail, Revoke
from tests.unit.kv_connector.handoff.machines import PEER, PROMPT, SETTINGS, Pair, outcome, ready_to_push, reserved


@pytest.mark.parametrize("late", [False, True])
def test_a_held_prompt_is_released_once_it_is_committed(late: bool) -> None:
    """A finished request keeps its blocks until its pushes have ended; at once, if they have already."""
    pair = ready_to_push()
    if not late:
        pair.p.hold("p-t", 0.0)
        assert not pair.p.released

    pair.push()
    if late:
        pair.p.hold("p-t", 0.0)

    assert pair.p.released == ["p-t"]


@pytest.mark.parametrize(
    ("is_answer", "watched", "released"), [(False, False, ["p-t"]), (False, True, []), (True, True, ["p-t"])]
)
def test_a_finished_prompt_is_let_go_after_a_while(is_answer: bool, watched: bool, released: list[str]) -> None:
    """Unless a decode rank that cannot allocate yet asks for it with its beats; an answer in any case: the other node can compute it."""
    pair = Pair()
    pair.start(prompt=PROMPT._replace(is_answer=is_answer))
    if watched:
        pair.watch()
    pair.p.hold("p-t", 0.0)

    pair.after(SETTINGS.orphan_timeout_s)
    assert not pair.p.released
    pair.after(0.5)
    assert pair.p.released == released
    pair.reserve()  # a rank that comes late is told

    assert [resolved.ok for resolved in pair.resolved()][:1] == [False] * len(released)


@pytest.mark.parametrize("reserved", [False, True])
def test_a_prompt_that_is_given_up_is_released_if_no_decode_rank_has_reserved(*, reserved: bool) -> None:
    """A reservation is used: its pushes end soon."""
    pair = Pair()
    pair.start()
    pair.watch()
    if reserved:
        pair.reserve()
    pair.p.hold("p-t", 0.0)

    pair.p.give_up("p-t", "blocks are wanted", 0.0)
    pair.talk()

    assert pair.p.released == ([] if reserved else ["p-t"])
    assert [each.reason for each in pair.resolved()] == ([] if reserved else ["blocks are wanted"])


@pytest.mark.parametrize("watched", [False, True])
def test_a_cancelled_prompt_is_released_at_once(watched: bool) -> None:
    """The proxy knows that a client left: nothing waits for a time-out, and a decode rank that watches is told."""
    pair = Pair()
    pair.start()
    if watched:
        pair.watch()
    pair.p.hold("p-t", 0.0)

    assert pair.p.cancel("t", 0.0)
    assert not pair.p.cancel("t", 0.0)
    pair.talk()

    assert pair.p.released == ["p-t"]
    assert [ended.reason for _, ended in pair.p.ended if isinstance(ended, Fail)] == [CANCELLED]
    assert [resolved.reason for resolved in pair.resolved()] == [CANCELLED] * watched


EARLY: dict[str, Callable[[Pair], object]] = {
    CANCELLED: lambda pair: pair.p.cancel("t", 0.0),
    REVOKED: lambda pair: pair.p.receive("route", pair.d.sessions[PEER].stamp(Revoke(transfer_id="t", epoch=0)), 0.0),
}


@pytest.mark.parametrize("reason", EARLY)
def test_a_prompt_that_was_ended_before_it_started_holds_nothing(reason: str) -> None:
    """It sat in a queue, as the decode leg may: both are answered from the tombstone."""
    pair = Pair()
    pair.watch("other")
    EARLY[reason](pair)

    pair.start()
    pair.write()
    pair.p.hold("p-t", 0.0)
    pair.reserve()

    assert pair.p.released == ["p-t"]
    assert "t" not in pair.p.transfers
    assert [resolved.reason for resolved in pair.resolved()] == [reason]
    assert pair.d.closed == ["d-t"]


def test_the_first_request_keeps_a_transfer_id() -> None:
    """Regression: a second one, refused on arrival, failed the first. It has no transfer: its blocks are freed when it ends."""
    pair = reserved()
    pair.p.start("t", "p-second", PROMPT, 0.0)
    pair.p.abandon("t", "not for us", 0.0)

    pair.p.hold("p-second", 0.0)

    assert pair.p.released == ["p-second"]
    assert pair.p.transfers["t"].request_id == "p-t"
    pair.write()
    pair.push()
    assert isinstance(outcome(pair), Commit)
