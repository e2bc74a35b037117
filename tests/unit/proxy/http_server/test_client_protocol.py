"""What ends a client's connection, on a transport that the test moves."""

import asyncio

import pytest
from starlette.types import Receive, Scope, Send

from baton.contracts.http_server import waiting_at
from baton.proxy.http_server import client_protocol
from baton.proxy.http_server.client_protocol import ClientProtocol, writer_of
from tests.support.cluster import until_true
from tests.support.fake_transport import Transport
from tests.unit.proxy.http_server.connections import REQUEST, connected


class App:
    def __init__(self) -> None:
        self.go = asyncio.Event()

    async def __call__(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        await self.go.wait()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})


@pytest.fixture
def _short_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    """A head may take but a moment, on connections that are made from here on."""
    monkeypatch.setattr(ClientProtocol, "head_timeout_s", 0.05)


@pytest.fixture
def app() -> App:
    return App()


@pytest.fixture
async def made(app: App, transport: Transport) -> ClientProtocol:
    return connected(app, transport)


async def test_a_closing_connection_is_watched_to_its_end(made: ClientProtocol, transport: Transport) -> None:
    """The client has read most of it, so that writing would go on; then it reads no more."""
    transport.unread_bytes = 1 << 20
    made.pause_writing()
    made.transport.close()
    transport.unread_bytes = 1000
    made.resume_writing()
    await asyncio.sleep(0.3)

    assert transport.aborted


@pytest.mark.parametrize("reads", [True, False])
async def test_a_client_is_watched_until_it_has_read_enough_to_be_written_to(
    made: ClientProtocol, transport: Transport, *, reads: bool
) -> None:
    """A stream may add nothing for long; what is left then, below the bound, need not be read."""
    transport.unread_bytes = 1000
    made.pause_writing()
    if reads:
        made.resume_writing()
    await asyncio.sleep(0.2)

    assert transport.aborted is not reads


@pytest.mark.usefixtures("_short_heads")
async def test_a_head_that_comes_slowly_does_not_end_the_answer_before_it(
    made: ClientProtocol, app: App, transport: Transport
) -> None:
    """Part of a pipelined request: until the one before it is answered, this connection waits for nothing."""
    made.data_received(REQUEST)
    made.data_received(REQUEST[:5])
    await asyncio.sleep(0.2)
    closed_amid, waiting_amid = transport.closing, list(waiting_at(made.server_state))
    app.go.set()
    await asyncio.sleep(0)
    waiting = list(waiting_at(made.server_state))
    await asyncio.sleep(0.2)

    assert (closed_amid, waiting_amid) == (False, [])
    assert waiting == [made]
    assert transport.closing


@pytest.mark.usefixtures("_short_heads")
async def test_empty_lines_do_not_keep_a_connection_for_ever(
    made: ClientProtocol, app: App, transport: Transport
) -> None:
    """Uvicorn's own timer between two requests ends with the first byte, and a line without a request begins none."""
    made.timeout_keep_alive = 0.1  # type: ignore[assignment]  # seconds, of which uvicorn has whole ones
    app.go.set()
    made.data_received(REQUEST)
    await asyncio.sleep(0.01)
    made.data_received(b"\r\n")
    await asyncio.sleep(0.4)

    assert b"200 OK" in transport.written
    assert transport.closing


@pytest.mark.parametrize("asks", [True, False])
async def test_a_stopping_proxy_lets_every_connection_ask_once_more(
    made: ClientProtocol, app: App, transport: Transport, monkeypatch: pytest.MonkeyPatch, *, asks: bool
) -> None:
    """A request may be on its way; it is answered and the connection is closed, as is one that asks nothing."""
    monkeypatch.setattr(client_protocol, "LAST_REQUEST_S", 0.05)
    made.shutdown()
    closed_at_once = transport.closing
    if asks:
        made.data_received(REQUEST)
        await asyncio.sleep(0.2)
    closed_amid = transport.closing
    app.go.set()
    await asyncio.sleep(0.2)

    assert (closed_at_once, closed_amid) == (False, False)
    assert transport.closing
    assert bool(transport.unread_bytes) == asks


async def test_a_stopping_proxy_ends_the_answer_that_is_under_way(
    made: ClientProtocol, app: App, transport: Transport
) -> None:
    made.data_received(REQUEST)
    made.shutdown()
    closed_at_once = transport.closing
    app.go.set()
    await until_true(lambda: transport.closing)

    assert not closed_at_once
    assert b"\r\nconnection: close\r\n" in transport.written  # it did not just stay idle for too long
    assert transport.written.endswith(b"ok")


async def test_a_client_that_does_not_keep_up_is_waited_for(transport: Transport) -> None:
    """The writer says so at each chunk, until it has read enough."""
    found: list[bool] = []

    async def app(scope: Scope, _receive: Receive, _send: Send) -> None:
        writer = writer_of(scope)
        served.pause_writing()
        found.append(writer.begin(200, [], b"first"))
        waiting = asyncio.create_task(writer.wait_writable())
        await asyncio.sleep(0)
        found.append(waiting.done())
        served.resume_writing()
        await waiting
        found.append(writer.write(b"second"))
        writer.end()

    served = connected(app, transport)
    served.data_received(REQUEST)
    await until_true(lambda: len(found) == 3)

    assert found == [False, False, True]


@pytest.mark.parametrize(("first", "ends"), [(b"first", False), (b"", False), (b"first", True)])
async def test_a_stream_goes_past_asgi_and_its_connection_serves_the_next_request(
    transport: Transport, first: bytes, *, ends: bool
) -> None:
    """Its head, first chunk and end, if they are there, are one write; uvicorn takes it for answered and goes on."""
    writes: list[bytes] = []
    waiting_amid: list[int] = []
    made: ClientProtocol

    async def app(scope: Scope, _receive: Receive, _send: Send) -> None:
        waiting_amid.append(len(waiting_at(made.server_state)))
        writer, before = writer_of(scope), len(transport.written)
        assert writer.begin(200, [(b"x-of", b"ours")], first, ends=ends)
        writes.append(transport.written[before:])
        if not ends:
            assert writer.write(b"second chunk")
        writer.end()  # which is nothing where it has ended

    made = connected(app, transport)
    for _ in range(2):
        made.data_received(REQUEST)
        await asyncio.sleep(0.01)

    chunk = (b"5\r\nfirst\r\n" if first else b"") + (b"0\r\n\r\n" if ends else b"")
    head, _, rest = writes[0].partition(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    assert lines[0] == b"HTTP/1.1 200 OK"
    assert {b"x-of: ours", b"transfer-encoding: chunked"} < set(lines)
    assert b"connection: close" not in lines
    assert rest == chunk
    assert writes[1].endswith(b"\r\n\r\n" + chunk)
    assert transport.written.count(b"0\r\n\r\n") == 2
    assert transport.written.count(b"c\r\nsecond chunk\r\n0\r\n\r\n") == (0 if ends else 2)
    assert waiting_amid == [0, 0]
    assert list(waiting_at(made.server_state)) == [made]
    assert not transport.closing

    made.give_way()
    assert not waiting_at(made.server_state)  # the next one that has to go is another


async def test_the_last_chunk_of_a_stream_and_its_end_are_one_write(transport: Transport) -> None:
    """Of two requests that were sent together the second waits until the first one's task has ended its response."""
    under_way, most = 0, 0

    async def app(scope: Scope, _receive: Receive, _send: Send) -> None:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        writer = writer_of(scope)
        writer.begin(200, [], b"first")
        before = len(transport.written)
        assert writer.write(b"last", ends=True)
        assert transport.written[before:] == b"4\r\nlast\r\n0\r\n\r\n"
        await asyncio.sleep(0.01)
        under_way -= 1
        writer.end()

    made = connected(app, transport)
    made.data_received(REQUEST + REQUEST)
    await asyncio.sleep(0.1)

    assert transport.written.count(b"0\r\n\r\n") == 2
    assert most == 1
    assert not transport.closing


async def test_a_stream_to_who_wants_no_more_closes_its_connection(transport: Transport) -> None:
    async def app(scope: Scope, _receive: Receive, _send: Send) -> None:
        writer_of(scope).begin(200, [], b"all")
        writer_of(scope).end()

    made = connected(app, transport)
    made.data_received(REQUEST.replace(b"host: x", b"host: x\r\nconnection: close"))
    await asyncio.sleep(0.01)

    assert b"\r\nconnection: close\r\n" in transport.written
    assert transport.written.endswith(b"3\r\nall\r\n0\r\n\r\n")
    assert transport.closing


async def test_nothing_is_written_to_who_has_left(transport: Transport) -> None:
    """Not even an end; the application that answers need not look."""
    left = asyncio.Event()
    ended = asyncio.Event()

    async def app(scope: Scope, _receive: Receive, _send: Send) -> None:
        await left.wait()
        writer = writer_of(scope)
        assert writer.begin(200, [], b"first")
        assert writer.write(b"second")
        writer.end()
        ended.set()

    made = connected(app, transport)
    made.data_received(REQUEST)
    transport.closing = True
    made.connection_lost(None)
    left.set()
    async with asyncio.timeout(20):
        await ended.wait()

    assert transport.written == b""


async def test_a_client_that_leaves_is_noticed_whichever_of_its_requests_is_answered(
    transport: Transport,
) -> None:
    """Also while another one, that was sent behind it, waits for its turn: uvicorn tells only that one."""
    told = asyncio.Event()

    async def app(scope: Scope, _receive: Receive, send: Send) -> None:
        assert writer_of(scope).tell_when_gone(told.set)
        await told.wait()
        assert not writer_of(scope).tell_when_gone(None)

    made = connected(app, transport)
    made.data_received(REQUEST + REQUEST)
    await asyncio.sleep(0.01)
    made.connection_lost(None)

    async with asyncio.timeout(20):
        await told.wait()
