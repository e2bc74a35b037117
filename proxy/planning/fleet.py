"""Which nodes may serve a model, kept until something changes: a plan among thousands of nodes asks none of them.

What a node may be used for changes with a probe's answer, an order, a breaker, a node that joins or leaves, and these
are counted (`Revision`). Two things change with time alone: a breaker that opens to a trial, and a silent prefill node
whose peers lose patience. What is kept ends when the first of them is due. Loads are read by the policies, of the nodes
themselves.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from baton.proxy.errors import UnavailableError
from baton.proxy.nodes.base_models import check_is_one, unknown_model
from baton.proxy.nodes.node import TAKES_WORK, Node, Pairing, Revision, State, answering, usable
from baton.proxy.planning.retry_policy import NOTHING_YET, History

MAX_MODELS: Final = 256  # kept at once


@dataclass(slots=True)
class Usable:
    """The nodes that may serve a model."""

    prefill: tuple[Node, ...]
    decode: tuple[Node, ...]
    matching: tuple[Node, ...]  # decode nodes that may get KV from one of the prefill nodes
    until_s: float  # from then on some may be used that could not, or the other way round
    _prefill_by_pairing: dict[Pairing | None, tuple[Node, ...]] = field(default_factory=dict)

    def prefill_for(self, decode_node: Node) -> tuple[Node, ...]:
        """Return the prefill nodes that may send KV to a decode node."""
        if (found := self._prefill_by_pairing.get(decode_node.pairing)) is None:
            found = self._prefill_by_pairing[decode_node.pairing] = tuple(that_fit(self.prefill, [decode_node]))
        return found


class Fleet:
    """All nodes of a proxy."""

    def __init__(
        self,
        prefill: Sequence[Node],
        decode: Sequence[Node],
        *,
        revision: Revision | None = None,
        patience_s: float = math.inf,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin with nodes that may come and go; `clock` is theirs and their breakers'.

        `revision` counts their changes; without it nothing is kept. `patience_s`: how long a prefill node may be silent.
        """
        self.prefill = prefill
        self.decode = decode
        self._revision = revision
        self._patience_s = patience_s
        self._clock = clock
        self._kept: dict[str, Usable] = {}
        self._kept_revision = 0

    def usable(self, model: str, history: History = NOTHING_YET) -> Usable:
        """Return the nodes that may serve a model, without those that have failed on the request.

        Raises a `ProxyError` if no decode node takes work, or none serves the model.
        """
        if self._revision is None or history.lost:
            return self._look(model, history)
        if self._kept_revision != self._revision.number:
            self._kept.clear()  # nodes that have left are among them
            self._kept_revision = self._revision.number
        kept = self._kept.get(model)
        if kept is None or self._clock() >= kept.until_s:
            kept = self._look(model, history)
            if len(self._kept) >= MAX_MODELS:
                self._kept.clear()
            self._kept[model] = kept
        return kept

    def usable_prefill(self, model: str, history: History, patience_s: float) -> list[Node]:
        """Return the prefill nodes that may serve a model, silent ones for so long."""
        return usable(
            node
            for node in self.prefill
            if node.serves(model) and not history.has_lost(node) and node.silent_s < patience_s
        )

    def _look(self, model: str, history: History) -> Usable:
        until_s = self._next_due_s()
        ready = [node for node in self.decode if node.state in TAKES_WORK]
        if not ready:
            raise UnavailableError("no decode node is ready")
        check_is_one(self.decode, model)
        if not any(node.serves(model) for node in self.decode):
            raise unknown_model(model, self.decode)
        decode = answering([node for node in ready if node.serves(model) and not history.has_lost(node)])
        prefill = self.usable_prefill(model, history, self._patience_s)
        return Usable(tuple(prefill), tuple(decode), tuple(that_fit(decode, prefill)), until_s)

    def _next_due_s(self) -> float:
        """Return when a node's use changes by itself."""
        now_s = self._clock()
        trials = [node.breaker.trial_at_s for nodes in (self.prefill, self.decode) for node in nodes]
        silent = [node for node in self.prefill if node.probed is State.SILENT and node.silent_s < self._patience_s]
        losses = [node.silent_since_s + self._patience_s for node in silent]
        return min((*(due_s for due_s in trials if due_s > now_s), *losses), default=math.inf)


def that_fit(nodes: Sequence[Node], others: Sequence[Node]) -> list[Node]:
    """Return the nodes that may exchange KV with one of the others."""
    theirs = {node.pairing for node in others} - {None}
    fits = {mine: any(mine.fits(other) for other in theirs if other) for mine in {n.pairing for n in nodes} if mine}
    return [node for node in nodes if node.pairing and fits[node.pairing]]
