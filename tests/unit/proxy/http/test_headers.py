import pytest

from baton.proxy.http import headers


def test_internal_and_connection_headers_are_not_forwarded() -> None:
    """The client's own headers reach the nodes; ours, the connection's and the body's do not."""
    sent = [
        (b"authorization", b"Bearer k"),
        (b"traceparent", b"00-1"),
        (b"x-baton-path", b"local"),
        (b"x-data-parallel-rank", b"1"),
        (b"connection", b"keep-alive"),
        (b"content-length", b"3"),
        (b"content-type", b"text/plain"),
        (b"accept-encoding", b"gzip"),
        (b"expect", b"100-continue"),
        (b"host", b"proxy"),
        (b"x-request-id", b"1"),
    ]

    assert headers.to_forward(sent).split(b"\r\n") == [
        b"content-type: application/json",
        b"authorization: Bearer k",
        b"traceparent: 00-1",
        b"",
    ]


@pytest.mark.parametrize("own", [b"", b"traceparent: 00-2\r\n"])
def test_the_proxys_own_trace_takes_the_place_of_the_clients(own: bytes) -> None:
    """Also where each leg has lines of its own: an engine reads the first of two headers."""
    sent = [(b"traceparent", b"00-1"), (b"tracestate", b"a=1"), (b"x-other", b"1")]

    lines = headers.to_forward(sent, own)

    assert lines == b"content-type: application/json\r\nx-other: 1\r\n" + own


def test_only_what_is_about_the_answer_is_relayed() -> None:
    """Hop-by-hop headers, the length and the nodes' internal headers stay behind."""
    got = [
        (b"content-type", b"text/event-stream"),
        (b"transfer-encoding", b"chunked"),
        (b"date", b"now"),
        (b"server", b"uvicorn"),
        (b"x-baton-path", b"recomputed"),
        (b"x-request-id", b"1"),
        (b"cache-control", b"no-store"),
    ]

    assert headers.to_relay(got) == [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-store")]


def test_a_clients_request_id_is_kept_if_it_is_fit_for_logs() -> None:
    assert headers.request_id_of([(b"x-request-id", b"abc-1")]) == "abc-1"
    for unfit in (b"", b"a b", b"\xff", b"x" * 201):
        assert len(headers.request_id_of([(b"x-request-id", unfit)])) == 32


def test_a_reason_becomes_one_line_of_ascii() -> None:
    assert headers.printable("a\r\nb: ü~\x7f") == b"a  b: ?~ "
