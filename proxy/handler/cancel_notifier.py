"""Telling prefill nodes at once that no request needs a transfer any more.

A finished prompt keeps its blocks until a decode node has asked for it, and only the proxy knows when none will: the
client left, or the decode node failed, before it was heard of. All ids of a node that wait are sent together, by one
task a node that lives while there are any. No request waits for it. A node that is silent is told again and again, for
as long as it would keep the prompts by itself: `orphan_timeout_s`.
"""

import asyncio
import logging
import time
from collections import deque
from typing import Final

import msgspec

from baton.contracts.http import CANCEL_PATH, MAX_CANCELLED
from baton.contracts.secret import ClusterSecret
from baton.proxy.errors import FailureKind, UpstreamError
from baton.proxy.http.headers import line
from baton.proxy.http.upstream import Upstream
from baton.proxy.nodes.node import Node
from baton.proxy.telemetry.metrics import Metrics

logger = logging.getLogger(__name__)

TIMEOUT_S: Final = 2.0  # of one call
PAUSES_S: Final = (0.2, 2.0)  # before the next try: the first, and the longest
MAX_WAITING: Final = 8 * MAX_CANCELLED  # ids per node; the oldest go first


class CancelNotifier:
    """What the prefill nodes are still to be told."""

    def __init__(self, secret: ClusterSecret, upstream: Upstream, metrics: Metrics, *, patience_s: float) -> None:
        """`patience_s`: how long a node is tried to be told of some transfers."""
        self._patience_s = patience_s
        self._secret = secret
        self._upstream = upstream
        self._metrics = metrics
        self._waiting: dict[Node, deque[str]] = {}  # a key as long as its task lives
        self._tasks: set[asyncio.Task[None]] = set()

    def add(self, node: Node, transfer_id: str) -> None:
        if node not in self._waiting:
            self._waiting[node] = deque()
            task = asyncio.create_task(self._tell(node))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        waiting = self._waiting[node]
        if len(waiting) == MAX_WAITING:
            waiting.popleft()
            self._metrics.cancelled("lost", 1)
        waiting.append(transfer_id)

    async def stop(self) -> None:
        """Say what is still to be said, for a moment."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=TIMEOUT_S)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _tell(self, node: Node) -> None:
        waiting = self._waiting[node]
        try:
            while waiting:
                ids = [waiting.popleft() for _ in range(min(len(waiting), MAX_CANCELLED))]
                problem = await self._say(node, ids)
                self._metrics.cancelled("lost" if problem else "told", len(ids))
                if problem:
                    fields = {"url": node.url, "transfers": len(ids), "reason": problem}
                    logger.warning("prefill node was not told of cancelled transfers", extra=fields)
        finally:
            del self._waiting[node]

    async def _say(self, node: Node, ids: list[str]) -> str:
        """Send ids until they are taken; return why they were not, or ""."""
        deadline_s = time.monotonic() + self._patience_s
        pause_s = PAUSES_S[0]
        while True:
            try:
                async with asyncio.timeout(TIMEOUT_S):
                    status = await self._post(node, ids)
            except TimeoutError:
                problem = "it did not answer in time"
            except UpstreamError as exc:
                problem = str(exc)
                if exc.kind is FailureKind.CONNECT:
                    return problem  # the process that held something is gone
            else:
                if status == 200:
                    return ""
                problem = f"it answered {status}"
                if status < 500:
                    return problem
            if time.monotonic() + pause_s >= deadline_s:
                return problem
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, PAUSES_S[1])

    async def _post(self, node: Node, ids: list[str]) -> int:
        body = msgspec.json.encode({"transfer_ids": ids})
        headers = line("authorization", f"Bearer {self._secret.node_token()}") + line(
            "content-type", "application/json"
        )
        answer = await self._upstream.post(node.url, CANCEL_PATH, headers, body)
        try:
            await answer.read_all()
        finally:
            answer.close()
        return answer.status
