"""Which messages may be believed."""

from itertools import count

import pytest

from baton.kv_connector.handoff.session import Session, SessionState
from baton.kv_connector.protocol.messages import Beat, Body, Introduce, Message, Refuse
from tests.unit.kv_connector.handoff.machines import D, P, hello

BEAT = Beat(open=[])


def known() -> Session:
    """D's session with a P that has introduced itself with message 5."""
    session = Session(D, count(1), 0.0)
    assert session.accept(Message(P, D, 5, hello()), 1.0) is None
    return session


def test_stamps_name_both_processes_and_count_up() -> None:
    """Every message says who, to whom, and when in the order of all that this process sends."""
    session = known()

    assert session.stamp(BEAT) == Message(D, P, 1, BEAT)
    assert session.stamp(BEAT).seq == 2
    assert session.state is SessionState.NEW
    assert Session(D, count(1), 0.0).stamp(BEAT) == Message(D, 0, 1, BEAT), "to whatever process is there"


def test_only_another_process_than_the_known_one_has_restarted() -> None:
    """The first one that is heard of has not."""
    messages = [Message(sender, D, 6, hello()) for sender in (P, P + 1)]

    assert [known().is_restart(message) for message in messages] == [False, True]
    assert not any(Session(D, count(1), 0.0).is_restart(message) for message in messages)


def test_a_process_that_calls_itself_0_does_no_harm() -> None:
    """So does the session call a peer that it has not heard of."""
    assert Session(D, count(1), 0.0).accept(Message(0, D, 1, hello()), 1.0) is None


NEW = P + 1  # a process at the address of the one that is known


@pytest.mark.parametrize(
    ("body", "sender", "receiver", "seq", "accepted"),
    [
        (BEAT, P, D, 6, True),
        (BEAT, P, D, 5, False),
        (BEAT, P, D, 4, False),
        (BEAT, P, D + 1, 6, False),
        (hello(), P, D + 1, 6, False),
        (hello(), P, 0, 6, True),
        (BEAT, P, 0, 6, False),
        (BEAT, NEW, D, 6, False),
        (hello(), NEW, D, 1, True),
        (Introduce(), NEW, D, 1, True),
        (Refuse(reason=""), NEW, D, 1, True),
    ],
)
def test_what_is_believed(body: Body, sender: int, receiver: int, seq: int, accepted: bool) -> None:
    """What is newer, meant for this process, and from the one that is known or introduces itself; it shows that the peer lives."""
    session = known()

    assert (session.accept(Message(sender, receiver, seq, body), 2.0) is None) == accepted
    assert session.silent_for(5.0) == (3.0 if accepted else 4.0)
