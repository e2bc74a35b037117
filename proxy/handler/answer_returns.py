"""KV of answers that have ended, sent back to the prefill nodes that had their prompts: a conversation's next turn finds it in the prefix cache.

A return is a transfer as a move's first one (`mover.py`): the decode node takes the prefill node's place, and the
prefill node receives, for its prefix cache alone. The client has its answer by then. If a return fails, the next turn's
prompt is computed as without it.
"""

import asyncio
import logging
from collections import deque
from functools import partial
from time import perf_counter
from typing import Final, Literal, NamedTuple

from msgspec.structs import replace

from baton.contracts.kv_transfer import Start
from baton.proxy.handler.attempt import AttemptRunner
from baton.proxy.handler.mover import send_kv
from baton.proxy.http.headers import find
from baton.proxy.nodes.node import Node, State
from baton.proxy.planning.planner import Planner
from baton.proxy.planning.plans import DisaggregatedPlan
from baton.proxy.request.eligibility import fetches_items
from baton.proxy.request.parse import ClientRequest
from baton.proxy.resume.stream import Stream
from baton.proxy.telemetry.metrics import Metrics

logger = logging.getLogger(__name__)

RETURN_HEADER: Final = b"x-return-answer"  # "off": a client does not want this answer's KV to be used again
MOST_AT_ONCE: Final = 2  # over all workers: a return takes a place among each node's sequences
# Of one worker, by requests and by bytes of their bodies; the oldest make way, as their blocks are the next that their
# nodes reuse.
MOST_WAITING: Final = 64
MOST_WAITING_BYTES: Final = 16 << 20
MAX_WAIT_S: Final = 5.0
_BYTES_PER_TOKEN: Final = 4  # of text, where only tokens are counted


class _Return(NamedTuple):
    plan: DisaggregatedPlan
    request: ClientRequest
    since_s: float
    body_bytes: int


class AnswerReturns:
    """Returns the KV of answers that one worker of the proxy relayed."""

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
        self._busy: dict[Node, asyncio.Task[None]] = {}  # destinations, of which each takes one at a time

    def offer(self, stream: Stream, pair: tuple[Node, Node] | None) -> None:
        """Return an answer that has ended, soon, if that is wanted and possible.

        `pair`: the decode node that has made it and the prefill node that has computed its prompt, if one has.
        """
        if self._mode == "off" or pair is None or stream.choices != 1 or fetches_items(stream.asked.fields):
            return
        if (find(stream.asked.headers, RETURN_HEADER) or b"").strip().lower() == b"off":
            return
        # The last token may be the one that ends an answer: a node that started with it would end the request at once.
        start: Start = tuple(ids[:-1] for ids in stream.tokens()[:1] if len(ids) > 1)
        plan = self._planner.return_answer(stream.asked, *pair) if start else None
        if plan is None or not self._pays(len(start[0]), plan):
            return
        # The prefill node computes nothing of it: it is no load.
        request = replace(stream.asked, start=start, names_tokens="", prompt=memoryview(b""))
        self._waiting.append(_Return(plan, request, perf_counter(), len(stream.asked.prompt)))
        while len(self._waiting) > MOST_WAITING or sum(one.body_bytes for one in self._waiting) > MOST_WAITING_BYTES:
            self._waiting.popleft()
            self._metrics.returned("dropped")
        self._begin()

    async def stop(self) -> None:
        self._waiting.clear()
        for task in (tasks := [*self._busy.values()]):
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

    def _begin(self) -> None:
        """Begin the oldest returns for whose destinations none is under way."""
        for one in [*self._waiting]:
            is_late = perf_counter() - one.since_s > MAX_WAIT_S
            if is_late or not all(node.state is State.READY for node in (one.plan.prefill, one.plan.decode)):
                self._waiting.remove(one)
                self._metrics.returned("dropped")
            elif len(self._busy) < self._most and one.plan.decode not in self._busy:
                self._waiting.remove(one)
                task = self._busy[one.plan.decode] = asyncio.create_task(self._return(one))
                task.add_done_callback(partial(self._end, one.plan.decode))

    def _end(self, destination: Node, _: asyncio.Task[None]) -> None:
        del self._busy[destination]
        self._begin()

    async def _return(self, one: _Return) -> None:
        problem = await send_kv(self._attempts, one.plan, [one.request], timeout_s=self._timeout_s)
        self._metrics.returned("failed" if problem else "returned")
        if problem:
            fields = {"request_id": one.request.request_id, "to": one.plan.decode.url, "reason": problem}
            logger.info("answer not returned", extra=fields)
