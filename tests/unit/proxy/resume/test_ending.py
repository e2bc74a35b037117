import pytest

from baton.proxy.resume.ending import Ending

STREAM = b'event: message_start\ndata: {"a":1}\n\nevent: message_stop\ndata: {"type":"message_stop"}\n\n'


@pytest.mark.parametrize("size", [1, 3, 7, 50, 1000])
def test_the_last_event_is_seen_in_whatever_pieces(size: int) -> None:
    """Bytes pass unchanged, and the stream is complete with its last byte and not before."""
    ending = Ending((b"message_stop", b"error"))
    out = b""
    for at in range(0, len(STREAM), size):
        assert not ending.complete
        out += ending.take(STREAM[at : at + size])

    assert out == STREAM
    assert ending.complete


def test_a_stream_that_is_one_event_may_be_complete() -> None:
    """An error may be the first event and the last."""
    ending = Ending((b"error",))
    ending.take(b"event: error\ndata: {}\n\n")

    assert ending.complete


@pytest.mark.parametrize(
    "data",
    [
        b'event: delta\ndata: {"text":"event: message_stop"}\n\n',
        b'event: delta\ndata: {"text":"\\nevent: message_stop\\n"}\n\n',
        b"event: message_stop\ndata: {",
        b"event: message_stopped\ndata: {}\n\n",
    ],
)
def test_what_only_looks_like_the_end_is_none(data: bytes) -> None:
    """An answer's text cannot end its stream, nor can half an event."""
    ending = Ending((b"message_stop",))
    ending.take(data)

    assert not ending.complete
