"""Answers whose decode node is silent, drained or evacuated: they are broken off, so that they go on on another node.

Silence alone is no failure. A stream leaves a node only if that answers no probe and has sent nothing of it for
`proxy.stall_timeout_s`, or has been draining for `proxy.drain_handover_s`, or was evacuated; and if another node can go
on with it. Of an answer that is not streamed tokens come, which are kept. What the silent node says later comes over a
connection that is closed by then. A node that is alive first sends the KV of its streams ahead, if it can (`mover.py`).
"""

import asyncio
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from itertools import islice
from time import perf_counter
from types import TracebackType
from typing import Final, Protocol

from baton.proxy.errors import FailureKind, StreamBrokenError
from baton.proxy.http_server.cancel_scope import CancelScope
from baton.proxy.nodes.moves import Moves
from baton.proxy.nodes.node import Node, State
from baton.proxy.planning.fleet import that_fit
from baton.proxy.planning.plans import DisaggregatedPlan, Plan
from baton.proxy.planning.retry_policy import History, RetryPolicy
from baton.proxy.response.first_token_relay import FirstTokenRelay
from baton.proxy.resume.rules import NotResumableReason
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


class KvAhead(Protocol):
    """Sends the KV of streams ahead; see `mover.py`."""

    most: int

    def plan(self, stream: Stream, node: Node, history: History) -> DisaggregatedPlan | None: ...

    async def send(self, plan: DisaggregatedPlan, stream: Stream) -> Plan | None: ...


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
        """`prefill`: the prefill nodes, if no answer is made without one.

        `stall_timeout_s`: how long nothing may come of a stream while its node is silent. `drain_handover_s`: how long
        a draining node keeps its streams. An answer of a silent node costs one of `retries`; without any left it waits.
        """
        self._decode = decode
        self._prefill = prefill
        self._retries = retries
        self._stall_timeout_s = stall_timeout_s
        self._drain_handover_s = drain_handover_s
        self.ahead: KvAhead | None = None
        self._sending = 0  # streams whose KV goes ahead
        self._streams: dict[Node, set[_Open]] = {}
        self._draining: dict[Node, tuple[float, bool]] = {}  # since when; whether an operator drained it
        self._timer: asyncio.TimerHandle | None = None

    def watching(
        self, node: Node, history: History, relay: FirstTokenRelay, *, has_kv: bool = False
    ) -> AbstractContextManager[None]:
        """Return a block in which a client waits for more of a stream, if it has some, or for a whole answer.

        It raises `StreamBrokenError`: the answer goes on on another node; `relay` is told where, if the KV is there.
        `has_kv`: the node is known to have the KV of what the client has.
        """
        return _Open(self, node, history, relay, has_kv=has_kv)

    def add(self, node: Node, one: "_Open") -> None:
        self._streams.setdefault(node, set()).add(one)
        self._look_later()

    def discard(self, node: Node, one: "_Open") -> None:
        if one.sending is not None:
            one.sending.cancel()
        streams = self._streams[node]
        streams.discard(one)
        if not streams:
            del self._streams[node]
            node.moves.staying.clear()

    def _look_later(self) -> None:
        if self._timer is None and self._streams:
            self._timer = asyncio.get_running_loop().call_later(LOOK_EVERY_S, self._look)

    def _look(self) -> None:
        self._timer = None
        self._look_later()
        now_s = perf_counter()
        self._note_draining(now_s)
        retries = self._retries.left if self._retries is not None else math.inf  # each is paid for later
        for node, streams in self._streams.items():  # a cancelled block is left later
            is_drained = node in self._draining and now_s - self._draining[node][0] >= self._drain_handover_s
            leaving: list[_Open] = []
            if is_drained or node.evacuated_at:
                leaving = [each for each in streams if is_drained or each.began_at < node.evacuated_at]
            if node.probed in _SILENT:
                silent = (one for one in streams if one.idle_s(now_s) >= self._stall_timeout_s)
                retries -= self._break_off(node, silent, retries)
                node.moves.staying = Counter({"silent": len(leaving)} if leaving else {})
            else:
                node.moves.staying = self._give_away(node, leaving, is_drained=is_drained)

    def _note_draining(self, now_s: float) -> None:
        """Note since when nodes drain. One that is silent in between, for a probe that came late, goes on draining."""
        known, self._draining = self._draining, {}
        for node in self._streams:
            since_s, was_ordered = known.get(node, (now_s, None))
            if node.state is State.DRAINING or (node.probed in _SILENT and was_ordered is node.draining):
                self._draining[node] = since_s, node.draining

    def _others(self, node: Node) -> Sequence[Node]:
        """Return the nodes that could go on with a node's streams."""
        ready = (other for other in self._decode if other.url != node.url and other.state is State.READY)
        return [other for other in ready if other.starts_with_tokens]

    def _has_prefill(self, one: "_Open", others: Sequence[Node]) -> bool:
        """Whether a prefill node can compute again what a stream leaves behind, if no answer is made without one."""
        if self._prefill is None:
            return True
        model, history = one.stream.asked.model, one.history
        ready = [each for each in self._prefill if each.state is State.READY]
        prefill = [each for each in ready if each.serves(model) and not history.has_lost(each)]
        return bool(that_fit([other for other in others if one.fits(other)], prefill))

    def _break_off(self, node: Node, silent: "Iterable[_Open]", retries: float) -> int:
        """Let streams of a silent node leave it, for at most so many `retries`; return how many leave."""
        others = self._others(node)
        leaving = (one for one in silent if one.kind is None and not one.why_it_stays(others))
        leaving = (one for one in leaving if self._has_prefill(one, others))
        if self._retries is not None:
            may_try = self._retries.may_try_again
            leaving = (one for one in leaving if may_try(one.history.without(node)))
        chosen = [*islice(leaving, int(min(retries, MOST_AT_ONCE)))]
        for one in chosen:
            one.leave(_STALLED)
        return len(chosen)

    def _give_away(self, node: Node, leaving: "Sequence[_Open]", *, is_drained: bool) -> Counter[str]:
        """Let streams of a node that is alive leave it, or begin to; return how many stay, by why."""
        staying: Counter[str] = Counter()
        others, left = self._others(node) if leaving else (), 0
        for one in leaving:
            if one.kind is not None:  # it is about to
                continue
            if one.onto is not None and one.leave_for(others):
                continue
            why = "sending" if one.sending is not None else one.why_it_stays(others)
            if not why and one.failed_for is node.moves and not is_drained:
                why = "failed"
            if not why and not (why := self._send_ahead(node, one)):
                if not self._has_prefill(one, others):
                    why = NotResumableReason.NO_NODE
                elif left == MOST_AT_ONCE:
                    why = "waiting"
            if why:
                staying[why] += 1
            else:
                one.leave(FailureKind.DRAINED)
                left += 1
        return staying

    def _send_ahead(self, node: Node, one: "_Open") -> str:
        """Begin to send a stream's KV ahead; return why it stays so long, "" if it leaves without."""
        ahead = self.ahead
        if ahead is None or one.failed_for is node.moves or not (one.has_kv and node.sends_streams):
            return ""
        if node.probed is not State.READY:  # a node that is stopping takes no requests
            return ""
        if self._sending >= ahead.most:
            return "waiting"
        plan = ahead.plan(one.stream, node, one.history)
        if plan is None:
            return ""
        self._sending += 1
        one.sending = asyncio.create_task(ahead.send(plan, one.stream))
        one.sending.add_done_callback(partial(self._sent, one))
        return "sending"

    def _sent(self, one: "_Open", task: "asyncio.Task[Plan | None]") -> None:
        self._sending -= 1
        one.sending = None
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(0, self._look)  # it is another one's turn
        if task.cancelled():
            return
        one.onto = task.result()
        if one.onto is None:
            one.failed_for = one.node.moves


class _Open:
    """One stream, on one node, for the length of a block."""

    __slots__ = (
        "_lines",
        "_scope",
        "_since_s",
        "_watch",
        "began_at",
        "failed_for",
        "has_kv",
        "history",
        "kind",
        "node",
        "onto",
        "relay",
        "sending",
        "stream",
    )

    def __init__(
        self, watch: StreamWatch, node: Node, history: History, relay: FirstTokenRelay, *, has_kv: bool
    ) -> None:
        self._watch = watch
        self.node = node
        self.history = history
        self.relay = relay
        self.stream = relay.stream
        self.has_kv = has_kv or self.stream.kept is not None
        self.began_at = relay.asked_at
        self.sending: asyncio.Task[Plan | None] | None = None  # its KV ahead
        self.failed_for: Moves | None = None  # the order for which its KV could not be sent ahead
        self.onto: Plan | None = None  # how it goes on, once its KV has been sent ahead
        self._since_s = perf_counter()
        self._lines = 0  # of a whole answer's tokens, at the last look
        self._scope = CancelScope()
        self.kind: FailureKind | None = None

    def __enter__(self) -> None:
        self._watch.add(self.node, self)

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, _: TracebackType | None) -> None:
        self._watch.discard(self.node, self)
        if self._scope.end(kind):
            assert self.kind is not None
            raise StreamBrokenError(self.kind, _MESSAGES[self.kind]) from exc

    def idle_s(self, now_s: float) -> float:
        """How long nothing has come of it on this node, as far as looks tell."""
        if (kept := self.stream.kept) is not None and kept.lines != self._lines:
            self._lines, self._since_s = kept.lines, now_s
        return now_s - max(self._since_s, self.relay.record.sent_s)

    def why_it_stays(self, others: Sequence[Node]) -> str:
        """Say why it cannot leave for one of these nodes; "" if it can."""
        stream, kept = self.stream, self.stream.kept
        if kept is None and stream.why_not_resumed is not None:
            return stream.why_not_resumed
        if kept is None and not self.relay.record.sent_s:
            return "beginning"
        if kept is None and not stream.can_go_on:
            return NotResumableReason.NO_TOKEN_IDS
        if kept is not None and not kept.can_start:
            return "beginning"
        if kept is not None and kept.is_answered:
            return "ending"
        return "" if any(map(self.fits, others)) else NotResumableReason.NO_NODE

    def fits(self, other: Node) -> bool:
        return other.serves(self.stream.asked.model) and not self.history.has_lost(other)

    def leave_for(self, others: Sequence[Node]) -> bool:
        """Leave for the node that has the KV by now, if that is still one of these; return whether it is."""
        onto, self.onto = self.onto, None
        if onto is None or self.why_it_stays([node for node in others if node is onto.decode]):
            self.failed_for = self.node.moves
            return False
        self.relay.onto = onto
        self.leave(FailureKind.DRAINED)
        return True

    def leave(self, kind: FailureKind) -> None:
        self.kind = kind
        self._scope.cancel()
