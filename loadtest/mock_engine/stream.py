"""One answer on its way: what is written at each token, and what a fault makes of it. No sockets, no clock."""

from dataclasses import dataclass
from typing import Protocol

from baton.loadtest.mock_engine.answers import STREAM_HEAD, Chunks, whole
from baton.loadtest.mock_engine.settings import Counts, Fault, FaultSetting


class Line(Protocol):
    """Where an answer goes."""

    def write(self, data: bytes) -> None: ...

    def end(self) -> None: ...

    def close(self) -> None:
        """Close the connection behind what was sent."""
        ...


class Stream:
    """Writes one stream, token by token."""

    __slots__ = ("_counts", "_fault", "_itl_s", "_line", "_on_first", "_pieces", "_sent", "_tokens", "gone")

    def __init__(
        self, line: Line, pieces: Chunks, *, tokens: int, itl_s: float, fault: FaultSetting, counts: Counts
    ) -> None:
        self._line = line
        self._pieces = pieces
        self._tokens = tokens
        self._itl_s = itl_s
        self._fault = fault if fault.fault in (Fault.CUT, Fault.STALL) else None
        self._counts = counts
        self._sent = 0
        self.gone = False  # the client, or the answer

    def __call__(self) -> float | None:
        """Write the next token; return when the one after it is due, None for never."""
        if self.gone:
            return None
        if self._fault is not None and self._sent >= min(self._fault.after_tokens, self._tokens - 1):
            self._break(self._fault.fault)
            return None
        self._sent += 1
        self._counts.chunks += 1
        pieces = self._pieces
        if self._sent == self._tokens:
            self._line.write(STREAM_HEAD + pieces.only if self._tokens == 1 else pieces.last)
            self.gone = True
            self._line.end()
            return None
        self._line.write(STREAM_HEAD + pieces.first if self._sent == 1 else pieces.middle)
        return self._itl_s

    def _break(self, fault: Fault) -> None:
        if fault is Fault.CUT:
            self.gone = True
            self._line.close()


@dataclass(slots=True)
class Whole:
    """Writes one answer that is no stream."""

    _line: Line
    _response: bytes
    _fault: Fault
    gone: bool = False

    def __call__(self) -> None:
        if self.gone or self._fault is Fault.STALL:
            return
        self.gone = True
        if self._fault is Fault.CUT:
            self._line.write(self._response[: len(self._response) // 2])
            self._line.close()
            return
        self._line.write(whole(200, b"") if self._fault is Fault.EMPTY else self._response)
        self._line.end()
