"""Whether a decode node computes a prompt itself, although it could be computed elsewhere; and how much of that it may do.

A short prompt, or one of which the decode node has most, is not worth a transfer. And a decode node that computes
prompts slows down everybody whose tokens it makes: so there is less of it while it has much, and an end to it, whatever
became of the prefill nodes.

    new bytes of the prompt      half          local_below
                        ├─ local ──┼─ local if calm ─┼─ elsewhere ─►

Pure: amounts are bytes of prompt in flight, which the proxy counts itself.
"""

from enum import StrEnum

from baton.proxy.nodes.node import Node


class Verdict(StrEnum):
    """Where a prompt is computed by choice; the values are labels of `baton_decisions_total`."""

    LOCAL = "short"
    ELSEWHERE = ""
    BUSY = "decode_busy"  # elsewhere, because the decode node has much to compute already


class LocalPrefillPolicy:
    """Decides request by request; remembers which nodes have much to compute, so that they do not swing to and fro."""

    def __init__(self, *, local_below_bytes: int, max_own_bytes: int) -> None:
        """`local_below_bytes` 0: nothing is computed locally by choice. `max_own_bytes` is per decode node."""
        self._local_below = local_below_bytes
        self._max_own = max_own_bytes
        self._busy: set[int] = set()  # slots

    def decide(self, new_bytes: int, node: Node) -> Verdict:
        """Say whether a decode node had better compute a prompt of which it is believed not to have `new_bytes`."""
        limit = self._local_below // 2 if self._is_busy(node) else self._local_below
        if new_bytes < limit and self.may_compute(new_bytes, node):
            return Verdict.LOCAL
        return Verdict.BUSY if new_bytes < self._local_below else Verdict.ELSEWHERE

    def may_compute(self, new_bytes: int, node: Node) -> bool:
        """Whether a decode node may be given another prompt to compute; an idle one may, however long it is."""
        return not node.own_prompt_bytes or node.own_prompt_bytes + new_bytes <= self._max_own

    def left(self, node: Node) -> None:
        self._busy.discard(node.slot)

    restarted = left  # it has nothing to compute

    def _is_busy(self, node: Node) -> bool:
        """From half of what it may have, until a quarter."""
        if node.own_prompt_bytes * 2 >= self._max_own:
            self._busy.add(node.slot)
        elif node.own_prompt_bytes * 4 <= self._max_own:
            self._busy.discard(node.slot)
        return node.slot in self._busy
