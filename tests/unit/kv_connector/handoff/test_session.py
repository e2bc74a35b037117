"""Which messages may be believed."""

from itertools import count

from baton.kv_connector.handoff.session import Session, SessionState
from baton.kv_connector.protocol.messages import Beat, Body, Introduce, Message, Refuse
from tests.unit.kv_connector.handoff.machines import D, P, hello

BEAT = Beat(open=[])


def known() -> Session:
    """D's session with a P that has introduced itself with message 5."""
    session = Session(D, count(1), 0.0)
    assert session.accept(Message(P, D, 5, hello()), 1.0) is None
    return session


def accepts(session: Session, body: Body, *, sender: int = P, receiver: int = D, seq: int = 6) -> bool:
    """Offer a message at 2 s."""
    return session.accept(Message(sender, receiver, seq, body), 2.0) is None


def test_stamps_name_both_processes_and_count_up() -> None:
    """Every message says who, to whom, and when in the order of all that this process sends."""
    session = known()

    assert session.stamp(BEAT) == Message(D, P, 1, BEAT)
    assert session.stamp(BEAT).seq == 2
    assert session.state is SessionState.NEW


def test_a_message_of_the_peer_is_acted_on() -> None:
    """A newer message from the right process to the right process counts, and shows that the peer lives."""
    session = known()

    assert accepts(session, BEAT)
    assert session.silent_for(5.0) == 3.0


def test_an_overtaken_message_is_dropped() -> None:
    """What is as old as the newest one seen, or older, is not acted on."""
    session = known()

    assert not accepts(session, BEAT, seq=5)
    assert not accepts(session, BEAT, seq=4)
    assert session.silent_for(5.0) == 4.0


def test_mail_for_a_predecessor_is_dropped() -> None:
    """A queue may hand a restarted process what its predecessor should have read."""
    assert not accepts(known(), BEAT, receiver=D + 1)
    assert not accepts(known(), hello(), receiver=D + 1)


def test_a_stranger_is_heard_only_when_it_introduces_itself() -> None:
    """A new incarnation shows itself with `Hello`, `Refuse` or `Introduce`; anything else from it is dropped."""
    assert not accepts(known(), BEAT, sender=12)
    assert accepts(known(), hello(), sender=12, seq=1)
    assert accepts(known(), Introduce(), sender=12, seq=1)
    assert accepts(known(), Refuse(reason=""), sender=12, seq=1)


def test_only_a_hello_may_come_to_nobody_in_particular() -> None:
    """Receiver 0 is for a first introduction alone."""
    assert accepts(known(), hello(), receiver=0)
    assert not accepts(known(), BEAT, receiver=0)


def test_late_mail_of_the_dead_does_not_bar_the_living() -> None:
    """Regression: the hello of a dead P came after its successor's, which was then taken for the dead one for good."""
    session = Session(D, count(1), 0.0)
    assert accepts(session, hello(), sender=12, seq=1)
    assert accepts(session, hello(), sender=P, seq=1)

    assert accepts(session, Introduce(), sender=12, seq=2)
    assert session.peer == 12
