"""Our response to one client: head and first bytes together, then chunk after chunk, or an error in the API's shape."""

import time
from typing import Final

from starlette.types import Send

from contracts.http import PATH_HEADER, REASON_HEADER, TRANSFER_HEADER
from proxy.admission.claims import Claim
from proxy.connections import Writer
from proxy.dialects.shapes import OPENAI, Shape
from proxy.errors import ProxyError
from proxy.headers import REQUEST_ID, printable
from proxy.plans import Pair, Plan

RawHeaderList = list[tuple[bytes, bytes]]
_PATH: Final = PATH_HEADER.encode()
_REASON: Final = REASON_HEADER.encode()
_TRANSFER: Final = TRANSFER_HEADER.encode()
_EVENT_END: Final = b"\n\n"


class Client:
    """The sending half of one exchange."""

    def __init__(self, send: Send, writer: Writer, claim: Claim, request_id: str, shape: Shape = OPENAI) -> None:
        """`claim` is told when the answer streams."""
        self._send = send
        self._writer = writer
        self._shape = shape
        self.claim = claim
        self.request_id = request_id
        self.path = ""  # how the answer was made, as far as is known
        self.reason = ""
        self.transfer_id = ""
        self.status = 0  # of the head, once it was sent
        self.broken = False  # an error was sent after the head
        self.stream_began_s: float | None = None  # time.perf_counter() at a stream's head
        self._ended = False
        self._last = b""

    def take(self, plan: Plan) -> None:
        """Say in the head how the answer is made; once it was sent, that is how it began."""
        if self.status:
            return
        self.path, self.reason = plan.path, plan.reason
        self.transfer_id = plan.transfer_id if isinstance(plan, Pair) else ""

    async def start(self, status: int, headers: RawHeaderList, first: bytes, *, streams: bool) -> None:
        """Send the head with the first bytes of a stream, or with the whole body."""
        self.status = status
        headers += self._labels()
        if streams:
            self.stream_began_s = time.perf_counter()
            self.claim.streams()
            self._last = first
            if not self._writer.begin(status, headers, first):
                await self.drained()
        else:
            self._ended = True
            await self._send({"type": "http.response.start", "status": status, "headers": headers})
            await self._send({"type": "http.response.body", "body": first})

    async def relay(self, chunk: bytes) -> None:
        """Send a chunk of a stream as it came, and wait for a client that is slow."""
        if not self.write(chunk):
            await self.drained()

    def write(self, chunk: bytes) -> bool:
        """Send a chunk of a stream at once, unless it is empty; return whether the client keeps up. See `drained`."""
        if not chunk:
            return True
        self._last = chunk
        return self._writer.write(chunk)

    async def drained(self) -> None:
        """Wait until the client has read enough of what was written."""
        await self._writer.drained()

    def end(self) -> None:
        """End a stream."""
        self._ended = True
        self._writer.end()

    async def fail(self, error: ProxyError) -> None:
        """Answer with an error, or end a stream that has begun with an error event: never with a silent end."""
        if self.status == 0:
            body = self._shape.body(error)
            headers = [(b"content-length", b"%d" % len(body)), *error.headers]
            if not any(name == b"content-type" for name, _ in error.headers):
                headers.append((b"content-type", b"application/json"))
            await self.start(error.status, headers, body, streams=False)
        elif not self._ended:
            self.broken = True
            opening = b"" if self._last.endswith(_EVENT_END) else _EVENT_END  # close the event that was cut
            await self.relay(opening + self._shape.event(error) + _EVENT_END)
            self.end()

    def _labels(self) -> RawHeaderList:
        labels = [(REQUEST_ID, self.request_id.encode("ascii"))]
        if self.path:
            labels.append((_PATH, self.path.encode("ascii")))
        if self.reason:
            labels.append((_REASON, printable(self.reason)))
        if self.transfer_id:
            labels.append((_TRANSFER, self.transfer_id.encode("ascii")))
        return labels
