"""One client: it sends a request, or a part of it, reads the answer as it comes, and can leave at any moment.

It speaks HTTP/1.1 through h11, which insists on the framing, so that an answer that was cut is told from one that ended.
"""

import asyncio
import json
import socket
import struct
import time
from enum import StrEnum
from typing import Any, Final
from urllib.parse import urlsplit

import h11

_READ_BYTES: Final = 1 << 16
_RESET_ON_CLOSE: Final = struct.pack("ii", 1, 0)  # SO_LINGER: on, 0 s


class Ending(StrEnum):
    """How an exchange ended."""

    OPEN = "open"  # not yet
    COMPLETE = "complete"  # by HTTP's framing
    CUT = "cut"  # the server closed the connection, or broke it, before that
    UNREACHABLE = "unreachable"  # no connection
    LEFT = "left"  # the client closed it
    HUNG = "hung"  # given up by the waiting client


class Exchange:
    """A request and what came back."""

    def __init__(self, tag: str, body: dict[str, Any]) -> None:
        """`tag` is the request id: it is what the nodes' ledgers show."""
        self.tag = tag
        self.status = 0
        self.headers: dict[str, str] = {}
        self.received = bytearray()
        self.ending = Ending.OPEN
        self.began_s = self.ended_s = 0.0
        self._body = json.dumps(body).encode()
        self._writer: asyncio.StreamWriter | None = None
        self._rest = asyncio.Event()  # the second half of the body may go out

    @property
    def took_s(self) -> float:
        """From the first byte sent to the end."""
        return self.ended_s - self.began_s

    @property
    def events(self) -> int:
        """Events of the stream so far."""
        return self.received.count(b"data: {")

    async def run(self, url: str, *, half: bool = False) -> None:
        """Send the request and read the answer to its end.

        Args:
            url: of the completions route.
            half: send only the head and one half of the body, until `finish_sending` is called.
        """
        self.began_s = time.monotonic()
        parts = urlsplit(url)
        try:
            reader, self._writer = await asyncio.open_connection(parts.hostname, parts.port)
        except OSError:
            self._end(Ending.UNREACHABLE)
            return
        try:
            await self._talk(reader, self._writer, parts.netloc, parts.path, half=half)
            self._end(Ending.COMPLETE)
        except (OSError, h11.RemoteProtocolError):
            self._end(Ending.CUT)
        finally:
            self._writer.transport.abort()

    def finish_sending(self) -> None:
        """Send the second half of the body."""
        self._rest.set()

    def leave(self, *, reset: bool) -> None:
        """Close the connection, politely (FIN) or not (RST)."""
        self._close(Ending.LEFT, reset=reset)

    def give_up(self) -> None:
        """The client stops waiting for the answer: the request counts as hung."""
        self._close(Ending.HUNG, reset=False)

    def _close(self, ending: Ending, *, reset: bool) -> None:
        self._end(ending)
        self._rest.set()
        if self._writer is None:
            return
        if reset:
            sock: socket.socket = self._writer.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        self._writer.transport.abort()

    async def _talk(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str, path: str, *, half: bool
    ) -> None:
        talk = h11.Connection(h11.CLIENT)
        head = [("host", host), ("content-type", "application/json"), ("content-length", str(len(self._body)))]
        head += [("x-request-id", self.tag), ("connection", "close")]
        writer.write(talk.send(h11.Request(method="POST", target=path, headers=head)) or b"")
        middle = len(self._body) // 2 if half else len(self._body)
        writer.write(talk.send(h11.Data(data=self._body[:middle])) or b"")
        if half:
            await self._rest.wait()
            if self.ending is not Ending.OPEN:
                return
            writer.write(talk.send(h11.Data(data=self._body[middle:])) or b"")
        talk.send(h11.EndOfMessage())
        while True:
            event = talk.next_event()
            if event is h11.NEED_DATA:
                talk.receive_data(await reader.read(_READ_BYTES))
            elif isinstance(event, h11.Response):
                self.status = event.status_code
                self.headers = {name.decode(): value.decode("latin-1") for name, value in event.headers}
            elif isinstance(event, h11.Data):
                self.received += bytes(event.data)
            elif isinstance(event, h11.EndOfMessage | h11.ConnectionClosed) or event is h11.PAUSED:
                return

    def _end(self, ending: Ending) -> None:
        if self.ending is Ending.OPEN:
            self.ending, self.ended_s = ending, time.monotonic()
