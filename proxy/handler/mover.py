"""KV of an answer that is to leave its decode node, sent ahead into the prefix cache of another one while the answer goes on.

Once it is there, the answer is broken off and goes on there as any other that broke (`failover.py`), but that the node
which it has left takes the prefill node's place once more: for what has been made since. Whatever fails here, the
answer has not been touched.
"""

import asyncio
import logging
from collections.abc import Iterable
from typing import Final

from msgspec.structs import replace

from baton.contracts.http import LOCAL
from baton.contracts.kv_transfer import new_transfer_id
from baton.proxy.handler.attempt import AttemptRunner
from baton.proxy.nodes.node import Node
from baton.proxy.planning.outcome import (
    DecodeFailed,
    DecodeRefused,
    Opened,
    PrefillDone,
    PrefillFailed,
    PrefillRefused,
)
from baton.proxy.planning.planner import Planner
from baton.proxy.planning.plans import DisaggregatedPlan, LocalPlan, Plan
from baton.proxy.planning.retry_policy import History
from baton.proxy.request.parse import ClientRequest
from baton.proxy.resume.stream import Stream
from baton.proxy.telemetry.metrics import Metrics

logger = logging.getLogger(__name__)

# Over all workers. Two fill a link while others are between two requests; with more, the last blocks of answers that
# have stopped for them would stand behind whole contexts.
MOST_AHEAD: Final = 4


class Mover:
    """Sends the KV of running streams to the nodes where they are to go on."""

    def __init__(
        self, planner: Planner, attempts: AttemptRunner, metrics: Metrics, *, timeout_s: float, workers: int = 1
    ) -> None:
        """`timeout_s` is for the KV of one answer."""
        self.most = max(1, MOST_AHEAD // workers)
        self._planner = planner
        self._attempts = attempts
        self._metrics = metrics
        self._timeout_s = timeout_s

    def plan(self, stream: Stream, node: Node, history: History) -> DisaggregatedPlan | None:
        """Choose the node that an answer goes to; None if none can have its KV from the one that it is on."""
        return self._planner.move(stream.asked, node, history)

    async def send(self, plan: DisaggregatedPlan, stream: Stream) -> Plan | None:
        """Carry out a plan for what the answer has so far; return the plan for the rest, None if the KV is not there."""
        # Each choice's: of all but the first only what differs is not there yet.
        requests = [replace(stream.asked, start=(ids,), names_tokens="") for ids in filter(None, stream.tokens())]
        problem = "its tokens are not known"
        if requests:
            problem = await send_kv(self._attempts, plan, requests, timeout_s=self._timeout_s)
        if not problem:
            return _rest(plan) if stream.choices == 1 else _alone(plan)
        plan.prefill.moves.results["failed"] += 1
        self._metrics.moved("failed")
        fields = {"from": plan.prefill.url, "to": plan.decode.url, "reason": problem}
        logger.warning("stream stays on its node", extra={"request_id": stream.asked.request_id} | fields)
        return None


async def send_kv(
    attempts: AttemptRunner, plan: DisaggregatedPlan, requests: Iterable[ClientRequest], *, timeout_s: float
) -> str:
    """Send the KV of prompts and the tokens that they start with into the other node's prefix cache, one after the other; return what went wrong."""
    try:
        async with asyncio.timeout(timeout_s):
            for request in requests:
                if problem := await _send_one(attempts, plan, request):
                    return problem
    except TimeoutError:
        return "it took too long"
    except Exception:
        logger.exception("KV could not be sent")
        return "an error of ours"
    return ""


async def _send_one(attempts: AttemptRunner, plan: DisaggregatedPlan, request: ClientRequest) -> str:
    async with attempts.run(_rest(plan), request, None) as outcome:
        match outcome:
            case Opened():
                return "the KV has not come" if outcome.recomputed else ""
            case DecodeFailed() | PrefillFailed():
                return outcome.message
            case DecodeRefused() | PrefillRefused():
                return f"a leg was answered {int(outcome.answered.status)}"
            case PrefillDone():
                return "the answer has ended"


def _rest(plan: DisaggregatedPlan) -> DisaggregatedPlan:
    return replace(plan, transfer_id=new_transfer_id())


def _alone(plan: DisaggregatedPlan) -> LocalPlan:
    """Several choices have different tokens, which one transfer cannot carry: the node computes what its prefix cache does not have."""
    return LocalPlan(decode=plan.decode, path=LOCAL, reason="")
