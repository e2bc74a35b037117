"""Peers that fall silent, hang up, restart or do not fit."""

import pytest

from baton.kv_connector.handoff.incoming import Phase
from baton.kv_connector.handoff.session import SessionState
from baton.kv_connector.protocol.messages import Beat, Fail, Introduce, Message, OpenEpoch, Refuse
from tests.unit.kv_connector.handoff.machines import (
    PEER,
    SETTINGS,
    WISH,
    D,
    P,
    Pair,
    hello,
    make_consumer,
    make_producer,
    outcome,
    ready_to_push,
    reserved,
)


def test_a_peer_that_was_forgotten_is_not_announced_to() -> None:
    """It fell silent between the watch and the announcement."""
    pair = Pair()
    pair.d.watch("t", "d-t", PEER, 0.0)
    pair.d.tick(5.5)
    pair.d.outbox.clear()

    pair.d.announce()

    assert not pair.d.outbox


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
    pair.d.disconnected(PEER, SETTINGS.reconnect_timeout_s)  # something else listens there, and hangs up as well
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
