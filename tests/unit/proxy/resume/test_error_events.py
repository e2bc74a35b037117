"""Errors that come as events of a stream: a node's own failure, or an answer to the client."""

import pytest

from baton.proxy.errors import FailureKind, StreamBrokenError
from tests.unit.proxy.resume.answers_in_pieces import KINDS, ONE_BY_ONE, begun, event, record_of


@pytest.mark.parametrize(("code", "is_nodes"), [(500, True), (400, False)])
def test_an_error_event(code: int, is_nodes: bool) -> None:
    """A node's own failure breaks the stream; what follows is dropped. A client's fault is an answer."""
    error = event({"error": {"message": "no", "code": code}})
    record = record_of("chat")
    said = list(KINDS["chat"](ONE_BY_ONE, 1))

    passed = record.take(said[0] + said[1] + error + said[2])

    assert (record.broken is not None) == is_nodes
    assert (error in passed) == (not is_nodes)
    assert (b"quoted" in passed) == (not is_nodes)


@pytest.mark.parametrize(
    ("kind", "said", "how"),
    [
        ("message", b'event: error\ndata: {"error": {"type": "internal_error"}}\n\n', FailureKind.STATUS),
        ("message", b'event: error\ndata: {"error": {"type": "invalid_request_error"}}\n\n', None),
        ("message", b"event: error\ndata: {}\n\n", FailureKind.STATUS),
        ("message", b"event: error\ndata: {\n\n", FailureKind.PROTOCOL),
        ("response", b'event: error\ndata: {"error": {"code": 500}}\n\n', FailureKind.STATUS),
        ("response", b'event: error\ndata: {"code": "server_error"}\n\n', FailureKind.STATUS),
        ("response", b'event: error\ndata: {"code": "invalid_request_error"}\n\n', None),
        ("response", b'event: error\ndata: {"error": {"code": 499}}\n\n', None),
        (
            "response",
            b'event: response.failed\ndata: {"response": {"error": {"code": "server_error"}}}\n\n',
            FailureKind.STATUS,
        ),
        ("response", b"event: response.failed\ndata: []\n\n", FailureKind.PROTOCOL),
        ("chat", b'data: {"error": "no"}\n\n', None),
        ("chat", b'data: {"error": {\n\n', FailureKind.PROTOCOL),
    ],
)
def test_an_error_event_of_any_dialect(kind: str, said: bytes, how: FailureKind | None) -> None:
    """One that cannot be read is a node's own failure, too; a client's fault ends its stream."""
    record = record_of(kind)

    assert record.take_event(said) == (b"" if how else said)
    assert (record.broken.how if isinstance(record.broken, StreamBrokenError) else None) is how
    assert record.done == (how is None)


def test_a_further_node_that_refuses() -> None:
    """Is no answer to the client, which has part of one."""
    record = begun()
    record.take(event({"error": {"message": "no", "code": 400}}))

    assert isinstance(record.broken, StreamBrokenError)
    assert record.broken.how is FailureKind.REFUSED
