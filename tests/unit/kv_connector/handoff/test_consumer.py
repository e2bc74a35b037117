"""The decode rank's state machine, with a real prefill rank at the other end."""

import pytest

from baton.kv_connector.handoff.consumer import MAX_DECLINED
from baton.kv_connector.handoff.incoming import Phase
from baton.kv_connector.handoff.session import SessionState
from baton.kv_connector.protocol.messages import (
    Beat,
    Body,
    Commit,
    Fail,
    Hello,
    Introduce,
    Message,
    OpenEpoch,
    Refuse,
    Reserve,
    Revoke,
)
from tests.unit.kv_connector.handoff.machines import (
    HASH,
    PEER,
    SETTINGS,
    WISH,
    D,
    P,
    Pair,
    hello,
    make_consumer,
    make_producer,
    ready_to_push,
    reserved,
)


def dirty() -> Pair:
    """A push has failed: D waits for the fence of e0. It wanted two blocks."""
    pair = Pair()
    pair.start()
    pair.reserve(wish=WISH._replace(blocks=[[0, 5, 6]]))
    pair.write()
    pair.push(ok=False)
    return pair


def two_reserved(pool_blocks: int = 100) -> Pair:
    """Two epochs through e0, of which one has turned dirty."""
    pair = Pair(consumer=make_consumer(pool_blocks=pool_blocks))
    for name, epoch in (("t", 1), ("u", 2)):
        pair.start(name)
        pair.reserve(name, epoch)
    pair.write("t")
    pair.push(ok=False)
    return pair


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


def test_a_dirty_epoch_fails_at_once_and_keeps_its_blocks() -> None:
    """E4: the request recomputes elsewhere while the blocks stay in quarantine until the fence (I3), asked for once."""
    pair = dirty()
    [resolved] = pair.resolved()
    assert (resolved.ok, resolved.reason) == (False, "a push failed")
    assert pair.d.closed == []
    assert pair.d.quarantined_blocks() == 2

    for now in (0.1, 0.2, 3.0):
        pair.d.tick(now)
    assert pair.d.fences == ["e0"]
    pair.d.fenced("e0")

    assert pair.d.closed == ["d-t"]
    assert pair.d.quarantined_blocks() == 0
    assert (pair.d.domains.retired, pair.d.domains.fencing) == ({}, set())
    assert not pair.resolved()


def test_healthy_epochs_may_finish_before_the_fence() -> None:
    """The engine is retired at once, and destroyed when its healthy epochs have ended."""
    pair = two_reserved()
    pair.d.engine_added(0, "e1")
    pair.d.tick(1.0)
    assert pair.d.fences == []

    pair.write("u")
    pair.push()
    pair.d.tick(1.1)

    assert [(r.transfer_id, r.ok) for r in pair.resolved()] == [("t", False), ("u", True)]
    assert pair.d.fences == ["e0"]


def test_a_fence_leaves_other_engines_alone() -> None:
    """New reservations go through the fresh engine and are not disturbed."""
    pair = dirty()
    pair.d.engine_added(0, "e1")
    pair.start("u")
    pair.reserve("u", epoch=2)

    pair.d.fenced("e0")

    assert pair.d.closed == ["d-t"]
    assert pair.d.transfers["u"].phase is Phase.RESERVED


def test_quarantine_is_bounded_in_time_and_blocks() -> None:
    """Healthy epochs of a retired engine fail when the dirty ones have waited for long enough, or have too many blocks."""
    pair = two_reserved()

    pair.d.tick(1.9)
    assert pair.d.fences == []
    pair.d.tick(2.0)
    assert pair.d.fences == ["e0"]
    pair.d.fenced("e0")

    assert [(r.transfer_id, r.ok) for r in pair.resolved()] == [("t", False), ("u", False)]
    assert pair.d.closed == ["d-t", "d-u"]

    pair = two_reserved(pool_blocks=20)  # of which 3 are more than a tenth
    pair.d.tick(0.1)
    assert pair.d.fences == ["e0"]


@pytest.mark.parametrize(("tokens", "prompt_hash"), [(41, HASH), (40, b"another")])
def test_a_commit_of_another_prompt_is_not_used(tokens: int, prompt_hash: bytes) -> None:
    """I7: nothing more will be written, so the blocks come back, but the request recomputes."""
    pair = ready_to_push()

    pair.to_d(Commit(transfer_id="t", epoch=1, tokens=tokens, prompt_hash=prompt_hash))

    [resolved] = pair.resolved()
    assert resolved.reason == "the prefill node committed another prompt"
    assert pair.d.closed == ["d-t"]


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


def test_a_peer_that_was_forgotten_is_not_announced_to() -> None:
    """It fell silent between the watch and the announcement."""
    pair = Pair()
    pair.d.watch("t", "d-t", PEER, 0.0)
    pair.d.tick(5.5)
    pair.d.outbox.clear()

    pair.d.announce()

    assert not pair.d.outbox


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


@pytest.mark.parametrize("lost", [Reserve, Revoke, Fail, Commit], ids=lambda kind: kind.__name__)
def test_a_beat_repairs_a_loss(lost: type[Body]) -> None:
    """Whatever is lost once comes again within a beat, or does no harm."""
    pair = Pair()
    once = [lost]
    pair.loses = lambda body: type(body) in once and not once.clear()  # type: ignore[func-returns-value]  # by its effect
    pair.start()
    pair.reserve()
    if lost in (Revoke, Fail):
        pair.d.cancel("d-t", 0.0)
        pair.talk()
    pair.write()
    pair.after(0.5)
    pair.push()

    pair.after(0.5)

    assert not once
    assert pair.d.closed == ["d-t"]
    assert not pair.d.transfers
    assert not pair.p.transfers
    assert not pair.d.fences


@pytest.mark.parametrize(("arrived", "what"), [(False, "no commit"), (True, "not verified")])
def test_a_transfer_that_takes_too_long_is_given_up(arrived: bool, what: str) -> None:
    """I5: it is revoked, and fails. So does one whose digests a device does not compute."""
    pair = verifying() if arrived else reserved()

    pair.after(120.5)

    assert [resolved.reason for resolved in pair.resolved()] == [f"{what} within 120 s"]
    assert pair.d.closed == ["d-t"]


def test_an_unanswered_revoke_ends_in_a_fence() -> None:
    """A push hangs: P cannot answer, and time says nothing about writes."""
    pair = ready_to_push()
    pair.pushes()
    pair.d.cancel("d-t", 0.0)

    pair.after(5.0)
    assert pair.d.fences == []
    pair.after(0.5)

    assert pair.d.fences == ["e0"]
    assert pair.d.closed == []


def test_a_silent_peer_makes_its_epochs_dirty() -> None:
    """E2: it may be dead with bytes in its kernel. What was not reserved is simply lost."""
    pair = ready_to_push()
    pair.watch("u")
    pair.d.watch("v", "d-v", PEER, 0.0)
    pair.d.prepare("d-v", 2, WISH, 0.0)

    pair.d.tick(5.5)

    assert {r.transfer_id: r.reserved for r in pair.resolved()} == {"t": True, "u": False, "v": True}
    assert pair.d.closed == ["d-v"]
    assert pair.d.fences == ["e0"]
    assert pair.d.forgotten == []


def test_a_peer_that_hung_up_is_asked_at_once_and_not_waited_for() -> None:
    """I5: a broken connection is a hint, silence after it is the answer; nothing else changes (I3)."""
    pair = Pair()
    pair.reserve()
    pair.loses = lambda _: True
    pair.heard.clear()

    pair.d.disconnected("tcp://forgotten:1", 0.0)
    pair.d.disconnected(PEER, 0.0)
    assert [(peer, type(message.body)) for peer, message in pair.d.outbox] == [(PEER, Beat)]
    pair.after(SETTINGS.reconnect_timeout_s)
    assert pair.d.transfers["t"].phase is Phase.RESERVED
    pair.after(0.5)

    [resolved] = pair.resolved()
    assert (resolved.ok, resolved.reason) == (False, "the prefill node does not answer")
    assert (pair.d.transfers["t"].phase, pair.d.closed) == (Phase.DIRTY, [])


def test_a_peer_that_answers_after_it_hung_up_is_as_good_as_before() -> None:
    """The connection broke on the way, or another one had been made before."""
    pair = Pair()
    pair.reserve()

    pair.d.disconnected(PEER, 0.0)
    pair.talk()
    pair.after(2 * SETTINGS.reconnect_timeout_s)
    assert pair.d.transfers["t"].phase is Phase.RESERVED
    pair.loses = lambda _: True
    pair.after(SETTINGS.peer_timeout_s)

    assert pair.d.transfers["t"].phase is Phase.RESERVED


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


def test_a_silent_peer_is_forgotten_when_nothing_is_left_of_it() -> None:
    """After the fence D hangs up; the next request dials again."""
    pair = ready_to_push()
    pair.d.domains.count = 2
    pair.d.engine_added(1, "e1")
    assert pair.d.hellos.keys() == {PEER}
    pair.d.tick(5.5)
    pair.d.fenced("e0")
    pair.d.engine_added(0, "e2")
    pair.d.tick(5.6)
    assert pair.d.forgotten == [PEER]
    assert not pair.d.hellos
    assert pair.d.domains.engine_for("tcp://another:1") == "e2", "its domain has no peer any more"
    pair.to_d(Beat(open=[]))
    assert not pair.d.sessions

    pair.d.outbox.clear()
    pair.now = 6.0
    pair.watch("u")

    assert pair.d.sessions[PEER].state is SessionState.OPEN


def test_a_restarted_peer_makes_reserved_epochs_dirty() -> None:
    """Its predecessor's kernel may still be sending; what had not begun may be meant for the new process."""
    pair = ready_to_push()
    pair.watch("u")
    pair.watch("v")
    pair.start("v")
    pair.watch("w")
    pair.d.prepare("d-w", 3, WISH, pair.now)  # not zeroed yet
    pair.p = make_producer(incarnation=12)

    pair.after(0.5)

    assert {r.transfer_id: r.reason for r in pair.resolved()} == dict.fromkeys("tv", "the prefill node restarted")
    assert pair.d.transfers["t"].phase is Phase.DIRTY
    assert pair.d.transfers["u"].phase is Phase.WATCHING
    assert pair.d.transfers["w"].phase is Phase.PREPARED
    assert pair.d.sessions[PEER].peer == 12
    assert "u" in pair.p.transfers


def test_an_introduce_is_answered_with_a_hello() -> None:
    """P does not know us any more; what is open is asked for again afterwards."""
    pair = ready_to_push()
    pair.d.receive(PEER, pair.p.sessions[D].stamp(Introduce()), 0.0)
    assert pair.d.sessions[PEER].state is SessionState.NEW
    pair.d.cancel("d-t", 0.0)

    pair.talk()
    pair.after(0.5)

    assert pair.d.closed == ["d-t"]


@pytest.mark.parametrize("by_p", [True, False])
def test_a_refused_pair_computes_alone(by_p: bool) -> None:
    """All requests that wait for this peer are told, and later ones at once. We may refuse as well, though P accepted us."""
    pair = Pair(make_producer(refuse="no fit" * by_p), make_consumer(refuse="no fit" * (not by_p)))
    pair.d.watch("s", "d-s", PEER, 0.0)
    pair.reserve("t")
    pair.watch("u")

    assert [(resolved.reason, resolved.reserved) for resolved in pair.resolved()] == [
        ("refused: no fit", False),
        ("refused: no fit", True),
        ("refused by the prefill node: no fit", False),
    ]
    assert pair.d.closed == ["d-t"]
    assert not pair.d.transfers


def test_a_refusal_leaves_what_may_be_written_to_the_fence() -> None:
    """P restarted with other weights: the epoch of its predecessor stays dirty."""
    pair = ready_to_push()

    pair.to_d(Refuse(reason="other weights"), sender=12)

    assert pair.d.transfers["t"].phase is Phase.DIRTY
    assert pair.d.sessions[PEER].state is SessionState.REFUSED


def test_late_mail_of_a_dead_peer_costs_no_more_than_a_fence() -> None:
    """D falls back to the dead process, hears its successor again, and serves new requests through a fresh engine."""
    pair = ready_to_push()
    pair.p = make_producer(incarnation=12)
    pair.after(0.5)
    pair.d.engine_added(0, "fresh")

    pair.to_d(hello(), sender=P)
    pair.talk()
    pair.start("u")
    pair.reserve("u", epoch=2)
    pair.write("u")
    pair.push()

    assert [(r.transfer_id, r.ok) for r in pair.resolved()] == [("t", False), ("u", True)]


def test_the_requests_of_one_step_are_announced_in_one_beat() -> None:
    """A beat lists everything that is open: one per request would make a burst of arrivals quadratic."""
    pair = Pair()
    pair.watch()
    pair.d.outbox.clear()
    for name in ("u", "v", "w"):
        pair.d.watch(name, f"d-{name}", PEER, pair.now)

    pair.d.announce()

    (beat,) = [message.body for _, message in pair.d.outbox]
    assert isinstance(beat, Beat)
    assert [transfer_id for transfer_id, _ in beat.open] == ["t", "u", "v", "w"]
    pair.d.outbox.clear()
    pair.d.announce()
    assert pair.d.outbox == []


def test_a_beat_lists_epochs_as_p_may_know_them() -> None:
    """One that was not sent yet is 0."""
    pair = reserved()
    pair.watch("u")
    pair.d.prepare("d-u", 2, WISH, 0.0)

    pair.d.tick(1.0)

    assert [message.body for _, message in pair.d.outbox] == [Beat(open=[OpenEpoch("t", 1), OpenEpoch("u", 0)])]


def verifying() -> Pair:
    """Everything has arrived, with digests that D has not compared yet."""
    pair = ready_to_push()
    pair.p._verify = lambda _: True
    pair.push()
    pair.p.digested(pair.p.to_digest[0], b"digests!", 0.0)
    pair.talk()
    return pair


def test_a_mismatch_fails_the_transfer_cleanly_and_p_hears_of_it() -> None:
    """D recomputes; P does not write any more, so there is nothing to fence."""
    pair = verifying()
    [transfer] = pair.d.to_verify

    assert pair.d.verified(transfer, "layer.3", mismatch=True)
    pair.after(3.0)

    [resolved] = pair.resolved()
    assert (resolved.ok, resolved.reserved, resolved.reason) == (False, True, "layer.3")
    assert pair.d.closed == ["d-t"]
    assert not pair.d.fences
    assert [complaint.mismatch for complaint in pair.p.complaints] == ["layer.3"]


def test_cancel_while_verifying_gives_the_blocks_back_at_once() -> None:
    """No request waits and P does not write; the comparison that comes later finds nothing to do."""
    pair = verifying()
    [transfer] = pair.d.to_verify

    pair.d.cancel("d-t", 0.0)
    assert pair.d.verified(transfer, "layer.3", mismatch=True) is False
    pair.talk()

    assert pair.p.complaints == []
    assert [resolved.reason for resolved in pair.resolved()] == ["cancelled"]
    assert pair.d.closed == ["d-t"]
    assert not pair.d.transfers


def test_a_cancelled_request_is_not_verified() -> None:
    """Cancelled before the commit came: its KV is not used whatever it is."""
    pair = ready_to_push()
    pair.p._verify = lambda _: True
    pair.push()
    pair.loses = lambda body: isinstance(body, Revoke)
    pair.d.cancel("d-t", 0.0)
    pair.talk()

    pair.p.digested(pair.p.to_digest[0], b"digests!", 0.0)
    pair.talk()

    assert not pair.d.to_verify
    assert pair.d.closed == ["d-t"]


@pytest.mark.parametrize("peer", ["unchanged", "silent", "restarted", "fenced"])
def test_a_commit_with_digests_is_used_once_they_agree(peer: str) -> None:
    """The request waits, with its blocks held. All of it has arrived: whatever happens to P, nothing is left that could land late."""
    pair = verifying()
    if peer == "fenced":
        pair.d.fenced("e0")
    elif peer == "restarted":
        pair.d.receive(PEER, Message(P + 1, D, 1, Introduce()), 1.0)
    elif peer == "silent":
        pair.loses = lambda _: True
        pair.after(8.0)
    assert (pair.resolved(), pair.d.closed) == ([], [])
    [transfer] = pair.d.to_verify
    assert transfer.commit is not None
    assert transfer.commit.digests == b"digests!"

    pair.d.verified(transfer)

    assert [(resolved.ok, resolved.commit) for resolved in pair.resolved()] == [(True, transfer.commit)]
    assert pair.d.closed == ["d-t"]
    assert not pair.d.fences


def test_a_repeated_commit_is_verified_once() -> None:
    """P has nothing to answer any more about an epoch that is verified; of a beat that still lists it the answer may come late."""
    pair = verifying()
    pair.d.tick(1.0)
    [(_, message)] = pair.d.outbox
    assert message.body == Beat(open=[])

    pair.to_p(Beat(open=[OpenEpoch("t", 1)]))
    pair.talk()

    assert len(pair.heard_of(Commit)) == 2
    assert len(pair.d.to_verify) == 1
    assert "t" in pair.d.transfers
