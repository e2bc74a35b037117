"""The HTTP client to the nodes, and the one place that knows aiohttp.

Every exception of aiohttp's becomes an `UpstreamError` here. A pooled connection that the node had closed meanwhile
(a restart, an idle time-out) is no failure: a request that received nothing is sent once more, on a new connection.
"""

import errno
import io
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Final

import aiohttp
from yarl import URL

from proxy.errors import Kind, UpstreamError

# uvicorn, in front of every vLLM, closes a connection that idled for 5 s: let go a little earlier.
KEEP_ALIVE_S: Final = 4.0
LARGE_BODY_BYTES: Final = 1 << 20  # above it aiohttp wants a file, which it sends in pieces
END_OF_EVENT: Final = b"\n\n"
EVENT_STREAM: Final = b"text/event-stream"
Headers = Iterable[tuple[str, str]]


class Answer:
    """A node's response, whose head has arrived. `close()` it unless it was read to its end."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response
        self.status = response.status
        self.headers = response.raw_headers
        self.is_stream = response.content_type == "text/event-stream"

    async def read_some(self) -> bytes:
        """Return what has arrived, at least one byte; nothing at the end."""
        try:
            return await self._response.content.readany()
        except _FOREIGN as exc:  # not `translated()`: this runs once a chunk
            raise _translation(exc) from exc

    async def read_event(self) -> bytes:
        """Return what has arrived, at least one whole event of a stream; nothing at the end."""
        data = await self.read_some()
        while data and END_OF_EVENT not in data:
            more = await self.read_some()
            if not more:
                raise UpstreamError(Kind.DISCONNECT, "its connection ended before its answer did")
            data += more
        return data

    async def read_all(self) -> bytes:
        """Return the whole body; a body that was cut is an error."""
        with translated():
            return await self._response.read()

    def close(self) -> None:
        """Close the connection at once, which tells the node to stop; nothing if the body was read to its end."""
        self._response.close()


class Upstream:
    """Connections to all nodes."""

    def __init__(self, *, connect_timeout_s: float) -> None:
        self._timeout = aiohttp.ClientTimeout(total=None, sock_connect=connect_timeout_s)
        self._pooled: aiohttp.ClientSession | None = None
        self._fresh: aiohttp.ClientSession | None = None

    async def start(self) -> None:
        """Make the pools; connections are opened when they are needed."""
        self._pooled = self._session(aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_S))
        self._fresh = self._session(aiohttp.TCPConnector(limit=0, force_close=True))

    async def stop(self) -> None:
        """Close everything; open answers break."""
        for session in (self._pooled, self._fresh):
            if session is not None:
                await session.close()
        self._pooled = self._fresh = None

    async def post(self, url: URL, headers: Headers, body: bytes) -> Answer:
        """Send a request and wait for the head of its response.

        Raises:
            UpstreamError: no head arrived.
        """
        assert self._pooled is not None
        assert self._fresh is not None
        with translated():
            try:
                return await self._send(self._pooled, url, headers, body)
            except aiohttp.ClientConnectorError:
                raise
            except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError):
                return await self._send(self._fresh, url, headers, body)

    @asynccontextmanager
    async def get(self, url: URL, headers: Headers = (), *, timeout_s: float) -> AsyncIterator[Answer]:
        """Ask a node something small.

        Raises:
            UpstreamError: no head arrived in time, or what is read in the block breaks.
        """
        assert self._pooled is not None
        timeout = aiohttp.ClientTimeout(total=timeout_s)
        with translated():
            async with self._pooled.get(url, headers=headers, timeout=timeout, allow_redirects=False) as response:
                yield Answer(response)

    async def _send(self, session: aiohttp.ClientSession, url: URL, headers: Headers, body: bytes) -> Answer:
        data = body if len(body) < LARGE_BODY_BYTES else io.BytesIO(body)
        return Answer(await session.post(url, headers=headers, data=data, allow_redirects=False))

    def _session(self, connector: aiohttp.TCPConnector) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            connector=connector,
            timeout=self._timeout,
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=("Accept", "Accept-Encoding", "User-Agent"),
        )


@contextmanager
def translated() -> Iterator[None]:
    """Turn aiohttp's exceptions into `UpstreamError`."""
    try:
        yield
    except _FOREIGN as exc:
        raise _translation(exc) from exc


_FOREIGN: Final = (aiohttp.ClientError, OSError)  # TimeoutError is an OSError


_OWN: Final = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS))


def _translation(exc: BaseException) -> UpstreamError:
    if isinstance(exc, OSError) and exc.errno in _OWN:
        return UpstreamError(Kind.OWN, "the proxy has too many connections")
    if isinstance(exc, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError):
        return UpstreamError(Kind.CONNECT, "it cannot be reached")
    if isinstance(exc, TimeoutError):
        return UpstreamError(Kind.TIMEOUT, "it did not answer in time")
    if isinstance(exc, aiohttp.ServerDisconnectedError | aiohttp.ClientPayloadError | OSError):
        return UpstreamError(Kind.DISCONNECT, "its connection ended before its answer did")
    return UpstreamError(Kind.PROTOCOL, "its answer is not HTTP")
