"""The prefill rank's state machine, with a real decode rank at the other end."""

from collections.abc import Callable

import pytest

from baton.kv_connector.handoff.incoming import BlockReservation
from baton.kv_connector.handoff.producer import CANCELLED, REVOKED
from baton.kv_connector.protocol.messages import (
    Beat,
    Commit,
    Fail,
    Message,
    OpenEpoch,
    Reserve,
    Revoke,
    SampledToken,
    Started,
)
from tests.unit.kv_connector.handoff.machines import (
    HASH,
    PEER,
    PROMPT,
    SETTINGS,
    WISH,
    D,
    Pair,
    hello,
    make_producer,
    ready_to_push,
    reservation,
    reserved,
)


def outcome(pair: Pair) -> Commit | Fail:
    """The last outcome that P reached."""
    return pair.p.ended[-1][1]


def committed(pair: Pair) -> Commit:
    """The last outcome, which is a commit."""
    commit = outcome(pair)
    assert isinstance(commit, Commit)
    return commit


def test_commit_follows_the_last_push() -> None:
    """Every block of every layer returned 0: the epoch is committed with what D needs to check and to bill it."""
    pair = Pair()
    pair.reserve()
    pair.start(prompt=PROMPT._replace(cached_tokens=16))
    pair.write()

    pair.push()

    commit = committed(pair)
    assert (commit.epoch, commit.tokens, commit.prompt_hash, commit.cached_tokens) == (1, 40, HASH, 16)
    assert commit.digests == b""  # not among the transfers that are verified
    marks = {"scheduled", "reserved", "first_layer", "last_layer", "first_push", "last_push", "commit"}
    assert set(commit.timings_s) == marks
    assert not pair.p.transfers


def test_a_commit_says_how_long_something_was_being_pushed() -> None:
    """Overlapping pushes count once and pauses not at all; the first push is timed from its beginning."""
    pair = ready_to_push()
    first, second = pair.next_push(2), pair.next_push(2)
    pair.p.push_begun(first, 1.0)
    pair.p.push_begun(second, 2.0)
    pair.p.push_done(first, True, 3.0)
    pair.p.push_done(second, True, 4.0)
    third = pair.next_push(2)
    pair.p.push_begun(third, 6.0)
    pair.p.push_done(third, True, 6.5)

    commit = committed(pair)

    assert commit.pushing_s == 3.5
    assert [commit.timings_s[name] for name in ("first_push", "last_push", "commit")] == [1.0, 6.5, 6.5]


def test_chunks_are_pushed_as_they_are_written() -> None:
    """Each chunk's blocks go out once; events of a layer may come in another order than the steps that they belong to."""
    pair = reserved()
    pair.write(blocks=1)
    pair.push()
    assert pair.p.transfers
    pair.write(blocks=1)
    assert not pair.pushes()

    pair.write(blocks=3)
    pair.write(blocks=1)
    pair.push()

    assert isinstance(outcome(pair), Commit)


def test_two_transfers_are_pushed_in_turn() -> None:
    """The one that had something to push first goes first, whatever it pushed before; neither disturbs the other."""
    pair = Pair()
    for name in ("t", "u"):
        pair.reserve(name, epoch=ord(name))
        pair.start(name)
    pair.write("t", blocks=1)
    pair.push()
    pair.write("u")
    pair.write("t")

    pushes = pair.pushes()
    assert [push.transfer.transfer_id for push in pushes] == ["u", "t"]
    pair.p.push_done(pushes[0], False, 0.0)
    pair.p.push_done(pushes[1], True, 0.0)
    pair.talk()

    assert {r.transfer_id: r.ok for r in pair.resolved()} == {"u": False, "t": True}


def test_a_failed_push_makes_the_epoch_dirty_at_once() -> None:
    """E1: no retry, no commit; D is told to fence even while another push is under way."""
    pair = ready_to_push()
    first, second = pair.next_push(3), pair.next_push(2)

    pair.p.push_done(first, False, 0.0)
    assert pair.p.next_push(3) is None
    pair.p.push_done(second, True, 0.0)

    assert outcome(pair) == Fail(transfer_id="t", epoch=1, dirty=True, reason="a push failed")
    assert len(pair.p.ended) == 1
    assert second.transfer.in_flight == 0


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
    assert pair.p.next_push(3) is None
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


def test_a_busy_decode_rank_holds_up_no_other() -> None:
    """Transfers to it keep their turn."""
    pair = ready_to_push()
    assert pair.p.next_push(3, busy={D}) is None

    assert pair.p.next_push(3, busy={22}) is not None


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


def test_a_cancel_after_the_commit_changes_nothing() -> None:
    """The decode rank may still ask for the outcome: it stays a commit."""
    pair = ready_to_push()
    pair.push()

    assert not pair.p.cancel("t", 0.0)
    pair.to_p(Revoke(transfer_id="t", epoch=1))

    assert isinstance(pair.p.outbox[-1][1].body, Commit)


def test_started_is_told_to_who_watches() -> None:
    """Whether the watch or the start comes first. D notes it once, and nothing of what it does not know."""
    for first, second in ((Pair.watch, Pair.start), (Pair.start, Pair.watch)):
        pair = Pair()
        first(pair)
        second(pair)
        assert pair.heard_of(Started) == [Started(transfer_id="t", tokens=40)]
        pair.after(2.0)
        pair.to_d(Started(transfer_id="unknown", tokens=1))

        assert pair.d.started == ["t"]


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


def test_a_silent_decode_rank_is_let_go() -> None:
    """Its epochs fail once their pushes have ended, its held prompts are released, nothing of it is kept."""
    pair = ready_to_push()
    [push] = pair.pushes()
    pair.p.hold("p-t", 0.0)
    assert pair.p.hello_of(D).node == "d"

    pair.p.tick(5.0)
    assert pair.p.sessions
    pair.p.tick(5.5)
    assert not pair.p.released
    pair.p.push_done(push, True, 6.0)

    assert outcome(pair) == Fail(transfer_id="t", epoch=1, dirty=False, reason="the decode node fell silent")
    assert pair.p.ended[-1][0].marks["failed"] == 6.0
    assert pair.p.released == ["p-t"]
    assert not pair.p.sessions
    assert not pair.p._terms_of
    with pytest.raises(KeyError):
        pair.p.hello_of(D)


def test_an_answer_goes_where_the_decode_rank_was_heard_last() -> None:
    """Its connection broke, and it has made another."""
    pair = Pair()
    pair.watch()

    pair.p.receive("another route", pair.d.sessions[PEER].stamp(Beat(open=[OpenEpoch("t", 0)])), 0.0)

    assert [(route, message.body) for route, message in pair.p.outbox] == [
        ("another route", Beat(open=[OpenEpoch("t", 0)]))
    ]


def test_a_strange_hello_does_no_harm() -> None:
    """Regression: a hello with sequence number 0 left half a session, and `tick` died of it 5 s later."""
    producer = make_producer()

    producer.receive("route", Message(D, 0, 0, hello("d")), 0.0)
    producer.tick(100.0)

    assert not producer.sessions


def test_one_silent_decode_rank_leaves_the_others_alone() -> None:
    """Each session has its own life."""
    pair = reserved()
    pair.now = 4.0
    pair.to_p(hello("d2"), sender=22, receiver=0)
    pair.to_p(Beat(open=[OpenEpoch("u", 0)]), sender=22)

    pair.p.tick(5.5)

    assert set(pair.p.sessions) == {22}
    assert set(pair.p.transfers) == {"u"}


def complete() -> Pair:
    """Everything has been pushed of a transfer that is to be verified."""
    pair = reserved()
    pair.p._verify = lambda transfer_id: transfer_id == "t"
    pair.write()
    pair.push()
    return pair


def test_a_commit_waits_for_its_digests() -> None:
    """Asked for once, when everything has been pushed; the blocks are kept, and what was computed travels with the commit."""
    pair = complete()
    pair.p.hold("p-t", 0.0)
    pair.after(0.5)
    [transfer] = pair.p.to_digest
    assert transfer.pushed_blocks(16) == [1, 2, 3]
    assert not pair.heard_of(Commit)
    assert not pair.p.released

    pair.p.digested(transfer, b"digests!", pair.now)
    pair.talk()

    assert committed(pair).digests == b"digests!"
    assert "digested" in committed(pair).timings_s
    assert len(pair.heard_of(Commit)) == len(pair.p.to_digest) == 1
    assert pair.p.released == ["p-t"]


@pytest.mark.parametrize("reason", ["preempted", "the digests could not be computed"])
def test_what_was_to_be_verified_and_cannot_be_is_not_committed(reason: str) -> None:
    """I2: after a void the digest may be that of another request's KV: D is told at once, and the late one changes nothing."""
    pair = complete()
    [transfer] = pair.p.to_digest

    if reason == "preempted":
        pair.p.void("p-t", reason, 0.0)
        pair.talk()
    pair.p.digested(transfer, b"digests!" if reason == "preempted" else b"", 0.0)
    pair.talk()

    assert outcome(pair) == Fail(transfer_id="t", epoch=1, dirty=False, reason=reason)
    assert not pair.heard_of(Commit)


def pushed() -> Pair:
    """Everything has arrived; the first token has not been sampled."""
    pair = Pair()
    pair.reserve()
    pair.start(prompt=PROMPT._replace(samples=True))
    pair.write()
    pair.push()
    return pair


def test_commit_waits_for_the_first_token_and_carries_it() -> None:
    """The first that is sampled: what a later step samples is another one."""
    pair = pushed()
    assert not pair.p.ended

    pair.p.token_sampled("p-t", SampledToken(id=7), 0.0)
    pair.p.token_sampled("p-t", SampledToken(id=8), 0.0)

    assert committed(pair).first == SampledToken(id=7)


@pytest.mark.parametrize("samples", [True, False])
def test_a_token_that_comes_before_the_last_push_waits_for_it(samples: bool) -> None:
    """A token that was not asked for is not sent: the decode node would start with a token that was chosen greedily."""
    pair = Pair()
    pair.reserve()
    pair.start(prompt=PROMPT._replace(samples=samples))
    pair.p.token_sampled("p-t", SampledToken(id=7), 0.0)
    assert not pair.p.ended

    pair.write()
    pair.push()

    assert committed(pair).first == (SampledToken(id=7) if samples else None)


def test_a_prompt_that_has_ended_commits_without_a_token() -> None:
    """Its step's output did not name one: the decode node samples it then."""
    pair = pushed()

    pair.p.hold("p-t", 0.0)

    assert committed(pair).first is None
