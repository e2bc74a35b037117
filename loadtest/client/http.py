"""HTTP/1.1 to one server: its address, connections whose bytes are stamped as they arrive, and those that are kept."""

import asyncio
import socket
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Protocol, cast
from urllib.parse import urlsplit

import httptools

from baton.loadtest.errors import UsageError

FRESH_S: Final = 60.0
_NO_STATUS: Final = 0
IDLE_S: Final = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """A server, and the path under which its API stands."""

    host: str
    port: int
    tls: bool
    prefix: str  # without a slash at its end

    @property
    def authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.tls else 80) else f"{host}:{self.port}"


def parse_address(url: str) -> Address:
    """Read an http or https base URL, with or without `/v1` at its end. Raises `UsageError`: it is none."""
    if not url.isascii() or not url.isprintable():
        raise UsageError(f"{url!r} is no URL: it has letters that URLs have not")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as exc:
        raise UsageError(f"{url!r} is no URL: {exc}") from exc
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(f"{url!r} is no URL of the form http://host:port")
    if parts.username is not None or parts.query or parts.fragment:
        raise UsageError("a URL with a user, a query or a fragment is no base URL; keys are given with --api-key")
    tls = parts.scheme == "https"
    prefix = parts.path.rstrip("/").removesuffix("/v1")
    return Address(host=parts.hostname, port=port or (443 if tls else 80), tls=tls, prefix=prefix)


class WireError(Exception):
    """A request came to nothing; the message says how."""


class LostError(WireError):
    """The connection ended before the answer did."""


class Sink(Protocol):
    """Takes an answer as it arrives."""

    def on_head(self, status: int, headers: dict[str, str]) -> None:
        """Take status and headers, the names in lower case."""

    def on_body(self, data: bytes, now_s: float) -> None: ...


class Connection(asyncio.Protocol):
    """A connection; `ask` it for one answer after the other."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._parser: httptools.HttpResponseParser | None = None
        self._sink: Sink | None = None
        self._answered: asyncio.Future[None] | None = None
        self._headers: dict[str, str] = {}
        self._status = _NO_STATUS  # of the answer under way
        self._now_s = 0.0
        self.reusable = False
        self.idle_since_s = 0.0

    async def ask(self, request: bytes, sink: Sink) -> None:
        """Send a request; return when its answer is complete. Raises `WireError`: it is not, or is no HTTP."""
        if self._transport is None or self._transport.is_closing():
            raise LostError("the connection is closed")
        self._parser = httptools.HttpResponseParser(self)
        self._sink, self._headers, self._status, self.reusable = sink, {}, _NO_STATUS, False
        self._answered = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        try:
            await self._answered
        finally:
            self._answered = self._sink = None
            if not self.reusable:
                self.close()
            self.idle_since_s = time.perf_counter()

    def close(self) -> None:
        self.reusable = False
        if self._transport is not None:
            self._transport.abort()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is none by inheritance

    def data_received(self, data: bytes) -> None:
        self._now_s = time.perf_counter()
        if self._parser is None or self._sink is None:  # nothing was asked: some servers say why they close
            self.close()
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as exc:
            self._end(WireError(f"no HTTP: {exc}"))

    def connection_lost(self, exc: Exception | None) -> None:
        """End the answer under way: well if only this could end it, badly otherwise."""
        self.reusable = False
        if exc is None and self._status >= 200 and not self._has_length():
            self._end(None)
        else:
            self._end(LostError(str(exc) if exc else "the server closed the connection"))

    # httptools' callbacks

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        """Hand the head on; a 1xx is none."""
        assert self._parser is not None
        status = self._parser.get_status_code()
        if status >= 200 and self._sink is not None:
            self._status = status
            self._sink.on_head(status, self._headers)

    def on_body(self, body: bytes) -> None:
        if self._sink is not None:
            self._sink.on_body(body, self._now_s)

    def on_message_complete(self) -> None:
        if self._status >= 200:
            assert self._parser is not None
            self.reusable = self._parser.should_keep_alive() and self._has_length()
            self._end(None)

    def _has_length(self) -> bool:
        return "content-length" in self._headers or "chunked" in self._headers.get("transfer-encoding", "").lower()

    def _end(self, error: WireError | None) -> None:
        if self._answered is None or self._answered.done():
            return
        if error is None:
            self._answered.set_result(None)
        else:
            self._answered.set_exception(error)


class Client:
    """Asks one server; a request is sent once and never again, so every failure is seen.

    Therefore a connection that was idle for longer than `IDLE_S` is not used again: servers close it (vLLM after 5 s),
    which must not look like a failure.
    """

    def __init__(self, address: Address, headers: Mapping[str, str], timeout_s: float) -> None:
        self._address = address
        self._timeout_s = timeout_s
        self._idle: list[Connection] = []  # the latest one last
        self._hosts: list[str] = []  # what the host's name stands for
        self._looked_up_s = -FRESH_S
        self._looking_up = asyncio.Lock()
        self._tls = ssl.create_default_context() if address.tls else None
        lines = {"Host": address.authority, "Accept": "*/*", "User-Agent": "baton-loadtest", **headers}
        self._head = "".join(f"{name}: {value}\r\n" for name, value in lines.items()).encode("latin-1")

    async def ask(self, method: str, path: str, body: bytes, sink: Sink) -> None:
        """Send a request and hand its answer to the sink. Raises `TimeoutError`, `OSError` (no connection), or `WireError`."""
        line = f"{method} {self._address.prefix}{path} HTTP/1.1\r\n".encode("latin-1")
        more = b"Content-Type: application/json\r\nContent-Length: %d\r\n" % len(body) if method == "POST" else b""
        async with asyncio.timeout(self._timeout_s):
            connection = self._reuse() or await self._connect()
            await connection.ask(b"".join((line, self._head, more, b"\r\n", body)), sink)
        if connection.reusable:
            self._idle.append(connection)

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()

    def _reuse(self) -> Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.reusable and time.perf_counter() - connection.idle_since_s <= IDLE_S:
                return connection
            connection.close()
        return None

    async def _connect(self) -> Connection:
        loop, name, port = asyncio.get_running_loop(), self._address.host if self._tls else None, self._address.port
        hosts = await self._look_up()
        for host in hosts:
            try:
                return (await loop.create_connection(Connection, host, port, ssl=self._tls, server_hostname=name))[1]
            except OSError:
                if host == hosts[-1]:
                    raise
        raise AssertionError("a name that stands for nothing is an error of its look-up")

    async def _look_up(self) -> list[str]:
        """Ask once a minute what the name stands for: for each of thousands of connections it would be in their TTFT."""
        async with self._looking_up:
            if time.monotonic() - self._looked_up_s >= FRESH_S:
                loop, address = asyncio.get_running_loop(), self._address
                infos = await loop.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
                self._hosts = list(dict.fromkeys(str(info[4][0]) for info in infos))
                self._looked_up_s = time.monotonic()
        return self._hosts
