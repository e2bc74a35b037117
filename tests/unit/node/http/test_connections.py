"""What ends a connection to a node, and which one makes way, on transports that the test moves."""

import asyncio
import resource
from typing import Any
from unittest.mock import Mock

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send

from baton.kv_connector.telemetry.refusals import Refused
from baton.node.http import connections
from baton.node.http.connections import MAX_HEAD_BYTES, Crowd, NodeProtocol, bound_connections, note_proof
from tests.support.cluster import until_true
from tests.support.fake_transport import Transport

HEAD = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 4\r\n\r\n"
UPGRADE = b"GET / HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n"
WHOLE = HEAD + b"body"
Connection = tuple[NodeProtocol, Transport]


class Node:
    """A server for at most three connections."""

    def __init__(self, head_timeout_s: float = 60.0, body_timeout_s: float = 60.0) -> None:
        self.refused: list[str] = []
        self.crowd = Crowd(3, lambda kind, _: self.refused.append(kind))
        self.go = asyncio.Event()
        self.reads_bodies = True
        self.made: list[Connection] = []
        self._state = uvicorn.server.ServerState()
        self.config = uvicorn.Config(
            self.answer, log_config=None, lifespan="off", interface="asgi3", timeout_keep_alive=1
        )
        self.config.load()
        times: Any = {"crowd": self.crowd, "head_timeout_s": head_timeout_s, "body_timeout_s": body_timeout_s}
        self._protocol = type("Protocol", (NodeProtocol,), times)

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        while self.reads_bodies and (await receive()).get("more_body"):
            pass
        if scope["path"] == "/proven":
            note_proof(scope)
        await self.go.wait()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})

    async def connected(self, sent: bytes = b"") -> Connection:
        made, transport = self._protocol(self.config, self._state, {}), Transport()
        self.made.append((made, transport))
        made.connection_made(transport)
        for each, its in self.made:
            if its.closing and each in self._state.connections:
                each.connection_lost(None)
        if sent:
            made.data_received(sent)
        await asyncio.sleep(0.01)
        return made, transport

    def closed(self) -> list[Connection]:
        """Those that had to make way, in the order of their making."""
        return [each for each in self.made if each[0] not in self._state.connections]


@pytest.fixture
async def node() -> Node:
    return Node()


@pytest.fixture
async def hasty() -> Node:
    return Node(0.05, 0.1)


@pytest.mark.parametrize("sent", [b"", b"\r\n", b"POST / HT", HEAD, HEAD + b"ab"])
async def test_what_never_becomes_a_request_is_closed(hasty: Node, sent: bytes) -> None:
    _, transport = await hasty.connected(sent)
    await asyncio.sleep(0.5)

    assert transport.closing


async def test_bytes_that_come_slowly_win_no_time(hasty: Node) -> None:
    slow = [await hasty.connected(HEAD[:20]), await hasty.connected(HEAD.replace(b"4", b"400"))]
    for _ in range(30):
        for made, transport in slow:
            if not transport.closing:
                made.data_received(b"a")
        await asyncio.sleep(0.02)

    assert all(transport.closing for _, transport in slow)


async def test_a_request_that_is_whole_has_its_time(hasty: Node) -> None:
    _, transport = await hasty.connected(WHOLE)
    await asyncio.sleep(0.3)
    closed_before = transport.closing
    hasty.go.set()
    await asyncio.sleep(0.05)

    assert not closed_before
    assert b"200 OK" in transport.written


async def test_a_refused_body_that_comes_later_leaves_no_connection_without_a_bound(hasty: Node) -> None:
    """Uvicorn's own timer ends with the first byte of it."""
    hasty.reads_bodies = False
    hasty.go.set()
    made, transport = await hasty.connected(HEAD)
    made.data_received(b"body")
    closed_before = transport.closing
    await asyncio.sleep(0.5)

    assert b"200 OK" in transport.written
    assert not closed_before
    assert transport.closing


async def test_a_head_without_end_is_not_kept(node: Node) -> None:
    """The parser has no bound of its own."""
    made, transport = await node.connected(HEAD[:20])
    made.data_received(b"x" * (MAX_HEAD_BYTES - 20))
    closed_before = transport.closing
    made.data_received(b"x")

    assert not closed_before
    assert transport.closing


async def test_a_long_body_is_no_long_head(node: Node) -> None:
    made, transport = await node.connected(HEAD.replace(b"4", b"%d" % (2 * MAX_HEAD_BYTES)))
    for _ in range(2):
        made.data_received(bytes(MAX_HEAD_BYTES))
    node.go.set()

    await until_true(lambda: b"200 OK" in transport.written)
    assert not transport.closing


async def test_connections_make_way_the_unproven_first(node: Node) -> None:
    """Who has shown the token or a signature is kept for longer; who is being answered is never closed."""
    node.go.set()
    proven = await node.connected(HEAD.replace(b"/", b"/proven", 1) + b"body")
    node.go.clear()
    answered = [await node.connected(WHOLE)]
    idle = await node.connected()
    half = await node.connected(HEAD)
    first = node.closed()
    answered.append(await node.connected(WHOLE))
    second = node.closed()
    last = await node.connected()
    third = node.closed()
    answered.append(await node.connected(WHOLE))
    newcomer = await node.connected()

    assert first == [idle]
    assert second == [idle, half]
    assert third == [proven, idle, half]
    assert node.closed() == [proven, idle, half, last, newcomer]
    assert node.refused == [Refused.CROWDED] * 5


async def test_a_connection_that_makes_way_does_so_once(node: Node) -> None:
    """Its end is told later, perhaps behind other newcomers."""
    made, _ = await node.connected()
    made.give_way()

    assert made not in node.crowd.unproven


async def test_a_connection_proves_itself_while_its_body_comes(node: Node) -> None:
    node.reads_bodies = False
    made, _ = await node.connected(HEAD.replace(b"/", b"/proven", 1))

    assert made not in node.crowd.unproven


async def test_a_whole_request_counts_for_as_long_as_it_is_answered(node: Node) -> None:
    """Also if another one follows it at once, half of which has come."""
    asking = await node.connected(WHOLE + HEAD)
    for _ in range(4):
        await node.connected()

    assert asking not in node.closed()


async def test_the_end_of_a_refused_body_makes_its_connection_the_newest_without_a_request(node: Node) -> None:
    node.reads_bodies = False
    node.go.set()
    made, _ = await node.connected(HEAD)
    idle = [await node.connected() for _ in range(2)]
    made.data_received(b"body")
    await node.connected()

    assert node.closed() == idle[:1]


@pytest.mark.parametrize(
    ("limit", "most"), [(4010, 3000), (20, 16), (resource.RLIM_INFINITY, ((1 << 20) - 10) * 3 // 4)]
)
def test_a_server_has_three_quarters_of_the_descriptors_that_are_left(
    monkeypatch: pytest.MonkeyPatch, limit: int, most: int
) -> None:
    """Of which ten are open already; a few it has in any case."""
    made = Mock()
    monkeypatch.setattr(connections, "Crowd", made)
    monkeypatch.setattr(connections, "Path", lambda _: Mock(iterdir=lambda: range(10)))
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limit, limit))
    server, refused = Mock(), Mock()
    bound_connections(server, refused)

    made.assert_called_once_with(most, refused)
    assert issubclass(server.config.http_protocol_class, NodeProtocol)
    assert server.config.http_protocol_class.crowd is made.return_value


async def test_a_websocket_waits_for_no_request(hasty: Node) -> None:
    """It is another protocol's from the upgrade on."""
    websocket = Mock()
    hasty.config.ws_protocol_class = Mock(return_value=websocket)
    _, transport = await hasty.connected(UPGRADE)
    await asyncio.sleep(0.3)

    websocket.connection_made.assert_called_once_with(transport)
    assert not transport.closing
    assert not hasty.crowd.unproven


async def test_an_answer_that_is_not_read_keeps_no_descriptor(hasty: Node, node: Node) -> None:
    """Neither when the next request is late nor when a connection has to make way: closing would wait for the peer."""
    for each in (hasty, node):
        each.go.set()
    _, late = await hasty.connected(WHOLE)
    crowd = [await node.connected(WHOLE) for _ in range(4)]
    made_way = [transport.aborted for _, transport in crowd]
    for _ in range(3000):
        if late.aborted:
            break
        await asyncio.sleep(0.01)

    assert late.unread_bytes
    assert late.aborted
    assert made_way == [True, False, False, False]
