"""From a request to an opened answer, over as many attempts as it takes and may take.

What an attempt has read here has not reached the client, also where it goes on with a broken stream, so a failure
costs time and nothing else. A stream that breaks later is caught in `request_handler.py`, which asks here for a node
that goes on with it. What follows a failure is the planner's choice (`planning/planner.py`), whether another node may
be asked is `planning/retry_policy.py`'s.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, asynccontextmanager, suppress
from functools import partial

from baton.contracts.http import RECOMPUTED
from baton.contracts.kv_transfer import Role
from baton.proxy.errors import FailureKind, NoRoomError, ProxyError
from baton.proxy.handler.attempt import AttemptRunner
from baton.proxy.nodes.moves import Result
from baton.proxy.nodes.node import Node
from baton.proxy.planning.local_prefill_queue import LocalPrefillQueue
from baton.proxy.planning.outcome import DecodeFailed, DecodeRefused, Opened, PrefillDone, PrefillFailed
from baton.proxy.planning.planner import Failure, Planner
from baton.proxy.planning.plans import DisaggregatedPlan, Plan
from baton.proxy.planning.retry_policy import MIN_LEFT_S, History, RetryDenial, RetryPolicy
from baton.proxy.request.parse import ClientRequest
from baton.proxy.response.first_token_relay import FirstTokenRelay
from baton.proxy.telemetry.metrics import Metrics

logger = logging.getLogger(__name__)


class Failover:
    """What all requests share: planner, attempts, and the budget of retries."""

    def __init__(self, planner: Planner, attempts: AttemptRunner, retries: RetryPolicy, metrics: Metrics) -> None:
        self.planner = planner
        self.attempts = attempts
        self.retries = retries
        self.metrics = metrics
        self.line = LocalPrefillQueue()

    def request_attempts(self, deadline: asyncio.Timeout) -> "RequestAttempts":
        self.retries.earn()
        return RequestAttempts(self, deadline)


class RequestAttempts:
    """One request's way through its attempts."""

    def __init__(self, shared: Failover, deadline: asyncio.Timeout) -> None:
        self._shared = shared
        self._deadline = deadline
        self._history = History()
        self._plan: Plan | None = None  # the last one that was tried
        self._last_pair: DisaggregatedPlan | None = None
        # The prefill node of that pair, and the answer that followed its KV.
        self._opened: tuple[Node, Opened] | None = None
        self._left: Node | None = None  # the node that the answer has just left, which was alive
        self._onto: Plan | None = None  # the plan of that move, if its KV has been sent ahead

    @asynccontextmanager
    async def answer(
        self, relay: FirstTokenRelay, chosen: Callable[[Plan], None]
    ) -> AsyncIterator[Opened | PrefillDone]:
        """Try nodes until one answers; the answer stays open for the block. `PrefillDone`: the client has all of it.

        `relay` has what is asked; `chosen` is called with each plan before it is tried. Raises a `ProxyError` if no
        node could answer, or one refused.
        """
        request = relay.stream.asked
        if self._plan is None:
            plan = self._first(request, others_wait=self._shared.line.is_waiting(request.model))
        else:
            plan = self._take_onto(relay) or await self._stand_in_line(partial(self._first, request), request)
        while True:
            self._plan = plan
            if isinstance(plan, DisaggregatedPlan) and not plan.moves:
                self._last_pair = plan
            chosen(plan)
            self._shared.metrics.decided(plan)
            async with self._shared.attempts.run(plan, request, relay, self._history) as outcome:
                if isinstance(outcome, Opened) and plan is self._last_pair:
                    self._opened = plan.prefill, outcome
                if isinstance(outcome, Opened | PrefillDone):
                    self._arrived(plan, outcome, relay)
                    yield outcome
                    return
            if isinstance(outcome, DecodeRefused):
                if plan is not self._onto and not (request.start_is_optional and request.start):
                    raise outcome.answered
                outcome = DecodeFailed(FailureKind.REFUSED, "it would not start with tokens", outcome.answered)
            relay.stream.restart(outcome.kind, had_tokens=_had_tokens(plan, outcome))
            request = relay.stream.asked
            if outcome.kind is FailureKind.DRAINED:
                self._left = plan.decode
            plan = self._take_onto(relay) or await self._after(plan, outcome, request)

    def watching(self, relay: FirstTokenRelay) -> AbstractContextManager[None]:
        assert self._plan is not None
        return self._shared.attempts.watch.watching(self._plan.decode, self._history, relay, has_kv=True)

    def has_kv(self) -> tuple[Node, Node] | None:
        """Return the decode node on which the answer has ended and the prefill node that has its prompt; None if none has."""
        if self._plan is None or self._opened is None or self._opened[1].recomputed:
            return None
        return self._plan.decode, self._opened[0]

    def broke(self, how: FailureKind) -> None:
        assert self._plan is not None
        if how is FailureKind.DRAINED:
            self._left = self._plan.decode
        else:
            self._history = self._history.without(self._plan.decode)

    def _take_onto(self, relay: FirstTokenRelay) -> Plan | None:
        self._onto, relay.onto = relay.onto, None
        return self._onto if self._left is not None and relay.stream.asked.start else None

    def _first(self, request: ClientRequest, *, others_wait: bool = False) -> Plan:
        return self._elsewhere(
            partial(self._shared.planner.first, request, keep=self._last_pair, others_wait=others_wait)
        )

    def _elsewhere(self, make: Callable[[History], Plan]) -> Plan:
        """Make a plan without a node that has just been left and is well; with it, if there is no other."""
        if self._left is not None:
            with suppress(ProxyError):
                return make(self._history.avoiding(self._left))
        return make(self._history)

    def _arrived(self, plan: Plan, outcome: Opened | PrefillDone, relay: FirstTokenRelay) -> None:
        """Count an answer that has left a node which was alive, unless it is there again."""
        left, self._left = self._left, None
        if left is None or left is plan.decode:
            return
        has_kv = plan is self._onto and isinstance(outcome, Opened) and not outcome.recomputed
        result: Result = "moved" if has_kv else "recomputed"
        left.moves.results[result] += 1
        self._shared.metrics.moved(result)
        relay.stream.on_gap = partial(self._shared.metrics.move_gap, result)

    def may_go_on(self) -> bool:
        """Ask for one more leg of an answer that broke, and pay for it."""
        denied = self._pay()
        if denied is not None:
            self._shared.metrics.denied("decode", denied)
        return denied is None

    async def _stand_in_line(self, make: Callable[[], Plan], request: ClientRequest) -> Plan:
        """Make a plan for a request that was accepted; it waits while decode nodes have as many prompts to compute as they may."""
        try:
            return make()
        except NoRoomError:
            logger.info("prompt waits for a decode node", extra={"request_id": request.request_id})
            return await self._shared.line.wait(make, request.model, self._left_s() - MIN_LEFT_S)

    async def _after(self, failed: Plan, failure: Failure, request: ClientRequest) -> Plan:
        metrics = self._shared.metrics
        leg, node = _culprit(failed, failure)
        self._history = self._history.after(node, failure.kind)
        pays = failure.kind is not FailureKind.DRAINED
        denied = self._pay() if pays else None

        def make() -> Plan:
            nonlocal denied
            if denied is RetryDenial.BUDGET:  # looked at again: there may be retries to be had by now
                denied = self._pay()
            after = partial(self._shared.planner.after, failed, failure, request)
            return self._elsewhere(partial(after, may_retry=denied is None, keep=self._last_pair))

        plan: Plan | None = None
        try:
            plan = await self._stand_in_line(make, request)
        except ProxyError:
            metrics.denied(leg, denied or RetryDenial.NO_NODE)
            raise
        finally:
            if pays and denied is None and (plan is None or plan.path == RECOMPUTED):
                self._shared.retries.give_back()
        if plan.path == RECOMPUTED:
            metrics.retried(leg, "recompute")
            if isinstance(failure, PrefillFailed):
                metrics.denied(leg, denied or RetryDenial.NO_NODE)
        else:
            metrics.retried(leg, "another_node")
        fields = {"request_id": request.request_id, "url": node.url, "kind": str(failure.kind), "path": plan.path}
        logger.info("attempt failed", extra=fields)
        request.trace.event("retry", leg=leg, kind=fields["kind"], path=plan.path)
        return plan

    def _pay(self) -> RetryDenial | None:
        """Pay for one more attempt before it is known whether it must wait: others may ask in between."""
        denied = self._shared.retries.denied(self._history, self._left_s())
        if denied is None:
            self._shared.retries.spend()
        return denied

    def _left_s(self) -> float:
        when_s = self._deadline.when()
        assert when_s is not None
        return when_s - asyncio.get_running_loop().time()


def _culprit(failed: Plan, failure: Failure) -> tuple[Role, Node]:
    if isinstance(failure, DecodeFailed):
        return "decode", failed.decode
    assert isinstance(failed, DisaggregatedPlan)  # a node alone has no prefill leg
    return "prefill", failed.prefill


def _had_tokens(failed: Plan, failure: Failure) -> bool:
    """Whether the node that failed was given the tokens that the answer has."""
    return isinstance(failure, DecodeFailed) or (isinstance(failed, DisaggregatedPlan) and failed.moves)
