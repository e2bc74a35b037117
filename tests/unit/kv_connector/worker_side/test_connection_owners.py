"""One connection, one process."""

from baton.kv_connector.worker_side.connection_owners import ConnectionOwners


def test_a_connection_speaks_for_the_first_process_that_it_spoke_for() -> None:
    """Any number of connections may speak for the same one: it dials again when the line breaks."""
    speakers = ConnectionOwners()

    assert speakers.may_speak("a", 1)
    assert not speakers.may_speak("a", 2)
    assert speakers.may_speak("a", 1)
    assert speakers.may_speak("b", 1)


def test_connections_heard_long_ago_are_forgotten() -> None:
    """The memory is bounded, and a connection that goes on speaking stays in it."""
    speakers = ConnectionOwners(capacity=2)
    for connection in ("a", "b", "a", "c"):
        speakers.may_speak(connection, 1)

    assert len(speakers._speakers) == 2
    assert not speakers.may_speak("a", 2)
    assert speakers.may_speak("b", 2)
