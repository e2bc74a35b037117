"""Answers whose decode node is silent, or is drained: they are broken off, so that they go on on another node.

Silence alone is no failure. A stream leaves a node only if that answers no probe and has sent nothing of it for `proxy.stall_timeout_s`, or has been draining for
`proxy.drain_handover_s`; and if another node can go on with it. Of an answer that is not streamed tokens come, which are kept. What the silent node says later comes over a connection that is closed by then.
"""

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import islice
from time import perf_counter
from types import TracebackType
from typing import Final

from baton.proxy.errors import FailureKind, StreamBrokenError
from baton.proxy.http_server.cancel_scope import CancelScope
from baton.proxy.nodes.node import Node, State
from baton.proxy.planning.retry_policy import History, RetryPolicy
from baton.proxy.response.request_record import RequestRecord
from baton.proxy.resume.stream import Stream

LOOK_EVERY_S: Final = 0.1
# Of one node, at one look: what the others have to compute again comes to them in portions.
MOST_AT_ONCE: Final = 16
_SILENT: Final = frozenset((State.SILENT, State.DOWN))
_STALLED: Final = FailureKind.STALLED
_MESSAGES: Final = {
    _STALLED: "it has gone silent in the middle of its stream",
    FailureKind.DRAINED: "it is drained",
}
_UNWATCHED: Final = nullcontext()


class StreamWatch:
    """Looks at all open streams."""

    def __init__(
        self,
        decode: Sequence[Node],
        prefill: Sequence[Node] | None = None,
        *,
        stall_timeout_s: float,
        drain_handover_s: float,
        retries: RetryPolicy | None = None,
    ) -> None:
        """Begin without streams.

        Args:
            decode: the decode nodes.
            prefill: the prefill nodes, if no answer is made without one.
            stall_timeout_s: how long nothing may come of a stream while its node is silent.
            drain_handover_s: how long a draining node keeps its streams.
            retries: an answer of a silent node costs one of them; without any left it waits.
        """
        self._decode = decode
        self._prefill = prefill
        self._retries = retries
        self._stall_timeout_s = stall_timeout_s
        self._drain_handover_s = drain_handover_s
        self._streams: dict[Node, set[_Open]] = {}
        self._draining_since_s: dict[Node, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def watching(
        self, node: Node, model: str, history: History, stream: Stream, record: RequestRecord
    ) -> AbstractContextManager[None]:
        """Return a block in which a client waits for more of a stream, if it has some, or for a whole answer.

        It raises `StreamBrokenError`: the answer is to go on on another node.
        """
        if stream.why_not_resumed is not None and stream.kept is None:
            return _UNWATCHED
        return _Open(self, node, model, history, stream=stream, record=record)

    def add(self, node: Node, one: "_Open") -> None:
        self._streams.setdefault(node, set()).add(one)
        self._look_later()

    def discard(self, node: Node, one: "_Open") -> None:
        streams = self._streams[node]
        streams.discard(one)
        if not streams:
            del self._streams[node]

    def _look_later(self) -> None:
        if self._timer is None and self._streams:
            self._timer = asyncio.get_running_loop().call_later(LOOK_EVERY_S, self._look)

    def _look(self) -> None:
        self._timer = None
        self._look_later()
        now_s = perf_counter()
        self._draining_since_s = {
            node: self._draining_since_s.get(node, now_s) for node in self._streams if node.state is State.DRAINING
        }
        for node, streams in self._streams.items():  # a cancelled block is left later
            if node.probed in _SILENT:
                self._break_off(node, (one for one in streams if one.idle_s(now_s) >= self._stall_timeout_s), _STALLED)
            elif now_s - self._draining_since_s.get(node, now_s + 1) >= self._drain_handover_s:
                self._break_off(node, streams, FailureKind.DRAINED)

    def _break_off(self, node: Node, streams: "Iterable[_Open]", kind: FailureKind) -> None:
        others = [
            other
            for other in self._decode
            if other is not node and other.state is State.READY and other.starts_with_tokens
        ]
        if not others or (self._prefill is not None and not any(node.state is State.READY for node in self._prefill)):
            return
        leaving, most = (one for one in streams if one.may_leave_for(others)), MOST_AT_ONCE
        if kind is _STALLED and self._retries is not None:
            most, may_try = min(most, self._retries.left), self._retries.may_try_again
            leaving = (one for one in leaving if may_try(one.history))
        for one in [*islice(leaving, most)]:
            one.leave(kind)


class _Open:
    """One stream, on one node, for the length of a block."""

    __slots__ = ("_lines", "_model", "_node", "_record", "_scope", "_since_s", "_stream", "_watch", "history", "kind")

    def __init__(
        self, watch: StreamWatch, node: Node, model: str, history: History, *, stream: Stream, record: RequestRecord
    ) -> None:
        self._watch = watch
        self._node = node
        self._model = model
        self.history = history
        self._stream = stream
        self._record = record
        self._since_s = perf_counter()
        self._lines = 0  # of a whole answer's tokens, at the last look
        self._scope = CancelScope()
        self.kind: FailureKind | None = None

    def __enter__(self) -> None:
        self._watch.add(self._node, self)

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, _: TracebackType | None) -> None:
        self._watch.discard(self._node, self)
        if self._scope.end(kind):
            assert self.kind is not None
            raise StreamBrokenError(self.kind, _MESSAGES[self.kind]) from exc

    def idle_s(self, now_s: float) -> float:
        """How long nothing has come of it on this node, as far as looks tell."""
        if (kept := self._stream.kept) is not None and kept.lines != self._lines:
            self._lines, self._since_s = kept.lines, now_s
        return now_s - max(self._since_s, self._record.sent_s)

    def may_leave_for(self, others: Sequence[Node]) -> bool:
        """Whether there is part of it, and one of these nodes could go on."""
        kept = self._stream.kept
        if kept is None:
            has_part = self._record.sent_s and self._stream.can_go_on
        else:
            has_part = kept.can_start and not kept.is_answered
        if self.kind is not None or not has_part:
            return False
        return any(other.serves(self._model) and not self.history.has_lost(other) for other in others)

    def leave(self, kind: FailureKind) -> None:
        self.kind = kind
        self._scope.cancel()
