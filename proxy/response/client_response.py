"""Our response to one client: head and first bytes together, then chunk after chunk, or an error in the API's shape."""

from bisect import bisect_left
from time import perf_counter
from typing import Final

from starlette.types import Send

from baton.contracts.http import PATH_HEADER, REASON_HEADER, TRANSFER_HEADER
from baton.proxy.errors import ProxyError
from baton.proxy.http.headers import REQUEST_ID, RawHeaderList, printable
from baton.proxy.http_server.client_protocol import Writer
from baton.proxy.http_server.connection_budget import ConnectionClaim
from baton.proxy.request.error_format import OPENAI, ErrorFormat
from baton.proxy.response.request_record import RequestRecord

_PATH: Final = PATH_HEADER.encode()
_REASON: Final = REASON_HEADER.encode()
_TRANSFER: Final = TRANSFER_HEADER.encode()
_EVENT_END: Final = b"\n\n"


class ClientResponse:
    """The sending half of one exchange. What it has sent stands in its `record`."""

    __slots__ = ("_ended", "_last", "_send", "_shape", "_writer", "claim", "record")

    def __init__(
        self, send: Send, writer: Writer, claim: ConnectionClaim, record: RequestRecord, shape: ErrorFormat = OPENAI
    ) -> None:
        self.claim = claim
        self.record = record
        self._send = send
        self._writer = writer
        self._shape = shape
        self._ended = False
        self._last = b""

    async def answer(self, status: int, headers: RawHeaderList, body: bytes) -> None:
        """Send a response that is no stream."""
        head = self._head(status, headers, body)
        self._ended = True
        await self._send({"type": "http.response.start", "status": status, "headers": head})
        await self._send({"type": "http.response.body", "body": body})

    def begin_stream(self, status: int, headers: RawHeaderList, first: bytes, *, ends: bool = False) -> bool:
        """Send the head and the first bytes of a stream at once; see `write`."""
        head, record = self._head(status, headers, first), self.record
        record.stream_began_s = record.sent_s = perf_counter()
        self._last = first
        return self._writer.begin(status, head, first, ends=ends)

    def write(self, chunk: bytes, ends: bool = False) -> bool:
        """Send a chunk of a stream at once, unless it is empty; if it `ends` the response, with the response's last bytes in the same write. `end` must be called in any case.

        Returns whether the client keeps up; see `wait_writable`.
        """
        if not chunk:
            return True
        # `LatencyHistogram.observe`: the way of most chunks, where a call would cost as much as what it does.
        now_s, record = perf_counter(), self.record
        gap_s, gaps = now_s - record.sent_s, record.gaps
        gaps.counts[bisect_left(gaps.bounds_s, gap_s)] += 1
        gaps.sum_s += gap_s
        record.sent_s = now_s
        record.sent_bytes += len(chunk)
        record.chunks += 1
        self._last = chunk
        return self._writer.write(chunk, ends=ends)

    async def wait_writable(self) -> None:
        await self._writer.wait_writable()

    def end(self) -> None:
        self._ended = True
        self._writer.end()

    async def fail(self, error: ProxyError) -> None:
        """Answer with an error, or end a stream that has begun with an error event: never with a silent end."""
        if self.record.status == 0:
            body = self._shape.body(error)
            headers = [(b"content-length", b"%d" % len(body)), *error.headers]
            if not any(name == b"content-type" for name, _ in error.headers):
                headers.append((b"content-type", b"application/json"))
            await self.answer(error.status, headers, body)
        elif self._writer.has_end:
            self.end()
        elif not self._ended:
            self.record.broken = True
            opening = b"" if self._last.endswith(_EVENT_END) else _EVENT_END  # close the event that was cut
            event = opening + self._shape.event(error) + _EVENT_END
            self.record.sent_bytes += len(event)
            if not self._writer.write(event):
                await self.wait_writable()
            self.end()

    def _head(self, status: int, headers: RawHeaderList, first: bytes) -> RawHeaderList:
        record = self.record
        record.status = status
        record.sent_bytes += len(first)
        labels = [*headers, (REQUEST_ID, record.request_id.encode("ascii"))]
        if record.path:
            labels.append((_PATH, record.path.encode("ascii")))
        if record.reason:
            labels.append((_REASON, printable(record.reason)))
        if record.transfer_id:
            labels.append((_TRANSFER, record.transfer_id.encode("ascii")))
        return labels
