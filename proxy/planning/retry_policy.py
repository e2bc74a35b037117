"""Whether a request may be tried once more, and what it has been through so far. Pure: the clock is given.

Only work that is asked of another node is a retry. A decode node that computes a prompt itself, because its prefill
node failed, does what no node has done yet: that needs no permission.

A cluster in trouble must not be asked several times for every request. Retries are paid from a bucket, which every
request fills by a share of one retry, and time by a little, so that a proxy with few requests can retry too. The bucket
starts full and is deep: the loss of one node breaks all of its requests at once, and those are to be saved; trouble
that lasts empties it, and then the share is what is left.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from baton.proxy.errors import FailureKind
from baton.proxy.nodes.node import Node

FLOOR_PER_S: Final = 1.0  # retries that time alone allows
MIN_LEFT_S: Final = 0.25  # of the request's time: with less, an attempt would only be cut


class RetryDenial(StrEnum):
    """Why there is no further attempt; the values are labels of `baton_retries_denied_total`."""

    ATTEMPTS = "attempts"  # the request had as many as it may have
    DEADLINE = "deadline"  # too little of its time is left
    BUDGET = "budget"  # all requests together had as many as they may have
    NO_NODE = "no_node"  # no other node can take it


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """What one request has been through: attempts that ended, and the nodes that failed on it."""

    attempts: int = 0
    lost: frozenset[tuple[Node, str]] = frozenset()  # with the start of its process that failed

    def has_lost(self, node: Node) -> bool:
        """Whether a node has failed on the request, and has not been started again since."""
        return (node, node.incarnation) in self.lost

    def after(self, node: Node, kind: FailureKind) -> "History":
        """Return the history after one more attempt; a decode node that did not answer may be asked again, and one that is drained has not failed."""
        if kind is FailureKind.DRAINED:
            return self
        if kind is FailureKind.TIMEOUT and node.role == "decode":
            return replace(self, attempts=self.attempts + 1)
        return self.without(node)

    def without(self, node: Node) -> "History":
        """Return the history after one more attempt, which failed on a node."""
        return History(attempts=self.attempts + 1, lost=self.lost | {(node, node.incarnation)})

    def avoiding(self, node: Node) -> "History":
        """Return it with a node that is not to be asked, though it has not failed."""
        return replace(self, lost=self.lost | {(node, node.incarnation)})


NOTHING_YET: Final = History()


class RetryPolicy:
    """Grants further attempts; one token of its bucket pays for one retry."""

    def __init__(self, *, share: float, burst: int, max_attempts: int, clock: Callable[[], float]) -> None:
        self._share = share
        self._burst = float(burst)
        self._max_attempts = max_attempts
        self._clock = clock
        self._tokens = self._burst
        self._filled_s = clock()

    def earn(self) -> None:
        """Count a request that arrived; `left` bounds what has been earned."""
        self._tokens += self._share

    @property
    def left(self) -> int:
        """How many retries may be made now, by all requests together."""
        now_s = self._clock()
        self._tokens = min(self._burst, self._tokens + (now_s - self._filled_s) * FLOOR_PER_S)
        self._filled_s = now_s
        return int(self._tokens)

    def may_try_again(self, history: History) -> bool:
        return history.attempts < self._max_attempts

    def denied(self, history: History, left_s: float) -> RetryDenial | None:
        """Say why a request with so much of its time left may not be tried on another node; None if it may."""
        if not self.may_try_again(history):
            return RetryDenial.ATTEMPTS
        if left_s < MIN_LEFT_S:
            return RetryDenial.DEADLINE
        return None if self.left else RetryDenial.BUDGET

    def spend(self) -> None:
        """Pay for an attempt that was granted."""
        assert self._tokens >= 1
        self._tokens -= 1

    def give_back(self) -> None:
        """Take back a payment for an attempt that is not made."""
        self._tokens += 1
