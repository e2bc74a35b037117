"""Streams whose decode node is silent, or is drained: they are broken off, so that they go on on another node.

Silence alone is no failure: a stream is only taken from a node that answers no probe, where nothing has come of it for some time, and where another node
can go on with it. What the silent node says later comes over a connection that is closed by then.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from time import perf_counter
from typing import Final

from baton.proxy.errors import FailureKind, StreamBrokenError
from baton.proxy.nodes.node import Node, State
from baton.proxy.response.request_record import RequestRecord
from baton.proxy.resume.stream import Stream

LOOK_EVERY_S: Final = 0.1
# Of one node, at one look: what the others have to compute again comes to them in portions.
MOST_AT_ONCE: Final = 16
_SILENT: Final = frozenset((State.SILENT, State.DOWN))
_MESSAGES: Final = {
    FailureKind.STALLED: "it has gone silent in the middle of its stream",
    FailureKind.DRAINED: "it is drained",
}


class StreamWatch:
    """Looks at all open streams."""

    def __init__(self, decode: Sequence[Node], *, stall_timeout_s: float, drain_handover_s: float) -> None:
        """Begin without streams.

        Args:
            decode: the decode nodes.
            stall_timeout_s: how long nothing may come of a stream while its node is silent.
            drain_handover_s: how long a draining node keeps its streams.
        """
        self._decode = decode
        self._stall_timeout_s = stall_timeout_s
        self._drain_handover_s = drain_handover_s
        self._streams: dict[Node, set[_Open]] = {}
        self._draining_since_s: dict[Node, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    @asynccontextmanager
    async def watching(self, node: Node, model: str, stream: Stream, record: RequestRecord) -> AsyncIterator[None]:
        """Run a block in which a client waits for more of a stream, if it has some.

        Raises:
            StreamBrokenError: the stream is to go on on another node.
        """
        if stream.why_not_resumed is not None:
            yield
            return
        one = _Open(model, stream, record)
        streams = self._streams.setdefault(node, set())
        streams.add(one)
        self._look_later()
        try:
            async with asyncio.timeout(None) as patience:
                one.patience = patience
                yield
        except TimeoutError as exc:
            if one.kind is None:
                raise
            raise StreamBrokenError(one.kind, _MESSAGES[one.kind]) from exc
        finally:
            streams.discard(one)
            if not streams and self._streams.get(node) is streams:
                del self._streams[node]

    def _look_later(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(LOOK_EVERY_S, self._look)

    def _look(self) -> None:
        self._timer = None
        now_s = perf_counter()
        self._draining_since_s = {
            node: self._draining_since_s.get(node, now_s) for node in self._streams if node.state is State.DRAINING
        }
        for node, streams in self._streams.items():
            if node.probed in _SILENT:
                stalled = (one for one in streams if now_s - one.record.sent_s >= self._stall_timeout_s)
                self._break_off(node, list(stalled), FailureKind.STALLED)
            elif (
                now_s - self._draining_since_s.get(node, now_s) >= self._drain_handover_s
                and node.state is State.DRAINING
            ):
                self._break_off(node, list(streams), FailureKind.DRAINED)
        if self._streams:
            self._look_later()

    def _break_off(self, node: Node, streams: "Sequence[_Open]", kind: FailureKind) -> None:
        leaving = [one for one in streams if one.may_leave and self._another_has(node, one.model)]
        for one in leaving[:MOST_AT_ONCE]:
            one.leave(kind)

    def _another_has(self, node: Node, model: str) -> bool:
        return any(
            other is not node and other.state is State.READY and other.starts_with_tokens and other.serves(model)
            for other in self._decode
        )


class _Open:
    """One stream, on one node."""

    __slots__ = ("kind", "model", "patience", "record", "stream")

    def __init__(self, model: str, stream: Stream, record: RequestRecord) -> None:
        self.model = model
        self.stream = stream
        self.record = record
        self.patience: asyncio.Timeout | None = None
        self.kind: FailureKind | None = None

    @property
    def may_leave(self) -> bool:
        """Whether the client has part of it, and another node could go on."""
        return self.kind is None and self.record.sent_s > 0 and not self.stream.ended and self.stream.can_go_on

    def leave(self, kind: FailureKind) -> None:
        """Break it off."""
        assert self.patience is not None
        self.kind = kind
        self.patience.reschedule(asyncio.get_running_loop().time())
