"""KV of answers that have ended, sent back to the prefill nodes that had their prompts: a conversation's next turn finds it in the prefix cache.

A return is a transfer as a move's first one (`mover.py`): the decode node takes the prefill node's place, and the prefill node receives, for its prefix cache
alone. The client has its answer by then. If a return fails, the next turn's prompt is computed as without it.
"""

import asyncio
import logging
from collections import deque
from time import perf_counter
from typing import Final, Literal, NamedTuple

from msgspec.structs import replace

from baton.contracts.kv_transfer import Start
from baton.proxy.handler.attempt import AttemptRunner
from baton.proxy.handler.mover import send_kv
from baton.proxy.http.headers import find
from baton.proxy.nodes.node import Node
from baton.proxy.planning.planner import Planner
from baton.proxy.planning.plans import DisaggregatedPlan
from baton.proxy.request.parse import ClientRequest
from baton.proxy.resume.stream import Stream
from baton.proxy.telemetry.metrics import Metrics

logger = logging.getLogger(__name__)

RETURN_HEADER: Final = b"x-return-answer"  # "off": a client does not want this answer's KV to be used again
MOST_AT_ONCE: Final = 2  # over all workers: a return takes a place among each node's sequences
MOST_WAITING: Final = 64  # of one worker; the oldest makes way, as its blocks are the next that its node reuses
MAX_WAIT_S: Final = 5.0
_BYTES_PER_TOKEN: Final = 4  # of text, where only tokens are counted


class _Return(NamedTuple):
    plan: DisaggregatedPlan
    request: ClientRequest
    since_s: float


class AnswerReturns:
    """Of one worker."""

    def __init__(
        self,
        planner: Planner,
        attempts: AttemptRunner,
        metrics: Metrics,
        *,
        mode: Literal["off", "on", "auto"],
        timeout_s: float,
        workers: int = 1,
    ) -> None:
        """`mode`: the setting `proxy.return_answers`. `timeout_s`: of one return."""
        self._planner = planner
        self._attempts = attempts
        self._metrics = metrics
        self._mode = mode
        self._timeout_s = timeout_s
        self._most = max(1, MOST_AT_ONCE // workers)
        self._waiting: deque[_Return] = deque()
        self._tasks: set[asyncio.Task[None]] = set()

    def offer(self, stream: Stream, pair: tuple[Node, Node] | None) -> None:
        """Return an answer that has ended, soon, if that is wanted and possible.

        Args:
            stream: the answer.
            pair: the decode node that has made it and the prefill node that has computed its prompt, if one has.
        """
        if (
            self._mode == "off"
            or pair is None
            or stream.choices != 1
            or find(stream.asked.headers, RETURN_HEADER) == b"off"
        ):
            return
        tokens = stream.tokens()[:1]
        # The last token may be the one that ends an answer: a node that started with it would end the request at once.
        start: Start = tuple(ids[:-1] for ids in tokens if len(ids) > 1)
        plan = self._planner.give_back(stream.asked, *pair) if start else None
        if plan is None or not self._pays(len(start[0]), plan):
            return
        # The prefill node computes nothing of it: it is no load.
        request = replace(stream.asked, start=start, names_tokens="", prompt=memoryview(b""))
        self._waiting.append(_Return(plan, request, perf_counter()))
        if len(self._waiting) > MOST_WAITING:
            self._waiting.popleft()
            self._metrics.returned("dropped")
        if len(self._tasks) < self._most:
            task = asyncio.create_task(self._work())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def stop(self) -> None:
        """End what is under way."""
        self._waiting.clear()
        for task in (tasks := [*self._tasks]):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _pays(self, tokens: int, plan: DisaggregatedPlan) -> bool:
        """Whether the KV is more than a block, and, for `auto`, takes the prefill node longer to compute than both nodes a step."""
        source, destination = plan.prefill, plan.decode
        info, now_s = destination.info, destination.clock()
        if info is None or info.fingerprint is None or tokens < info.fingerprint.block_size_tokens:
            return False
        if self._mode == "on":
            return True
        step_s = source.inter_token.predict_s(source.streams + 1, now_s)
        computing_s = destination.prefill_time.predict_s(tokens * _BYTES_PER_TOKEN, now_s)
        at_least_s = destination.prefill_time.predict_s(0, now_s)
        if step_s is None or computing_s is None or at_least_s is None:
            return False
        return computing_s - at_least_s > 2 * step_s

    async def _work(self) -> None:
        while self._waiting:
            one = self._waiting.popleft()
            if perf_counter() - one.since_s > MAX_WAIT_S:
                self._metrics.returned("dropped")
                continue
            problem = await send_kv(self._attempts, one.plan, [one.request], timeout_s=self._timeout_s)
            self._metrics.returned("failed" if problem else "returned")
            if problem:
                fields = {"request_id": one.request.request_id, "to": one.plan.decode.url, "reason": problem}
                logger.info("answer not returned", extra=fields)
