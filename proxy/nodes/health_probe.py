"""Probing one node, all the time that it is a member: its health and its description."""

import asyncio
import itertools
import logging
from collections.abc import Callable
from typing import Final

import msgspec

from baton.contracts.configuration.schema import ProxyConfig
from baton.contracts.decoding import DECODE_ERRORS
from baton.contracts.http import NODE_PATH
from baton.contracts.node_info import NodeInfo, NodeLoad
from baton.contracts.secret import ClusterSecret
from baton.proxy.errors import FailureKind, UpstreamError
from baton.proxy.http.headers import line
from baton.proxy.http.upstream import Upstream
from baton.proxy.nodes.node import LONGEST_SILENCE_S, Node, State

logger = logging.getLogger(__name__)

HEALTH_PATH: Final = "/health"
BUSY_EVERY_S: Final = 1.0  # how often a probe that is to be stopped looks whether its node carries requests
# So many in a row make a node that was ready count as silent; one that refuses or hangs up is down at once.
LATE_PROBES: Final = 2
STALE_S: Final = 5.0  # what others had on a node so long ago says nothing about now
_MAY_FALL_SILENT: Final = frozenset((State.READY, State.SILENT))  # the others have nothing to be waited for


class Prober:
    """Probes any node once."""

    def __init__(self, config: ProxyConfig, secret: ClusterSecret, upstream: Upstream) -> None:
        self.interval_s = config.probe_interval_s
        self._timeout_s = config.probe_timeout_s
        self._secret = secret
        self._upstream = upstream

    async def probe(self, node: Node) -> None:
        """Ask a node and write down what it said. A late answer is asked for once more: a busy node is not a dead one."""
        for late in itertools.count(1):
            try:
                await self._probe(node)
            except UpstreamError as exc:
                if exc.kind is FailureKind.OWN:
                    return  # it was not asked
                is_late = exc.kind is FailureKind.TIMEOUT
                if is_late and node.probed is State.READY and late < LATE_PROBES:
                    continue
                is_silent = is_late and node.probed in _MAY_FALL_SILENT and node.unheard_s < LONGEST_SILENCE_S
                node.lose(State.SILENT if is_silent else State.DOWN, f"a probe failed: {exc}")
            return

    async def _probe(self, node: Node) -> None:
        health, _ = await self._get(node, HEALTH_PATH)
        if health != 200:
            node.lose(State.DOWN, f"GET {HEALTH_PATH} answered {health}")
            return
        before = node.own
        token = line("authorization", f"Bearer {self._secret.node_token()}")  # the secret may have changed
        answer = await self._get(node, NODE_PATH, token)
        _describe(node, *answer, _most(before, node.own))

    async def _get(self, node: Node, path: str, headers: bytes = b"") -> tuple[int, bytes]:
        async with self._upstream.get(node.url, path, headers, timeout_s=self._timeout_s) as answer:
            return answer.status, await answer.read_all()


class HealthProbe:
    """The task that probes one node, at intervals and whenever it is woken."""

    def __init__(self, node: Node, prober: Prober, on_restart: Callable[[Node], None]) -> None:
        self._node = node
        self._prober = prober
        self._on_restart = on_restart
        self._incarnation = ""  # the last one that the node named
        self._woken = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    def wake(self) -> None:
        self._woken.set()

    async def stop(self) -> None:
        """Stop probing; idempotent."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def stop_when_idle(self) -> None:
        """Go on for as long as the node carries requests, since its streams leave it if it falls silent."""
        while self._node.requests:  # noqa: ASYNC110  # nothing waits for it
            await asyncio.sleep(BUSY_EVERY_S)
        await self.stop()

    async def _run(self) -> None:
        while True:
            self._woken.clear()  # a wake-up from here on means something that this probe may not have seen
            before = self._node.probed, self._node.probed_reason
            try:
                await self._prober.probe(self._node)
            except Exception as exc:  # task boundary: the node has to be probed again
                self._node.lose(State.UNREADY, f"the proxy failed on what it answered: {exc!r}")
                if (self._node.probed, self._node.probed_reason) != before:
                    logger.exception("a probe failed", extra={"url": self._node.url})
            self._note(before)
            if not await self._is_woken(min(self._prober.interval_s, STALE_S)) and self._prober.interval_s > STALE_S:
                self._node.forget_others()
                await self._is_woken(self._prober.interval_s - STALE_S)

    async def _is_woken(self, within_s: float) -> bool:
        try:
            async with asyncio.timeout(within_s):
                return await self._woken.wait()
        except TimeoutError:
            return False

    def _note(self, before: tuple[State, str]) -> None:
        node = self._node
        if node.incarnation and node.incarnation != self._incarnation:
            known, self._incarnation = self._incarnation, node.incarnation
            if known:
                logger.info("node restarted", extra={"url": node.url, "role": node.role})
                self._on_restart(node)
        if (node.probed, node.probed_reason) != before:
            fields = {"url": node.url, "role": node.role, "state": str(node.probed), "reason": node.probed_reason}
            logger.info("node changed state", extra=fields)


def _most(before: NodeLoad, after: NodeLoad) -> NodeLoad:
    """What began or ended while the node answered may be in what it said: none of it is taken for the work of others."""
    return NodeLoad(
        requests=max(before.requests, after.requests), prompt_bytes=max(before.prompt_bytes, after.prompt_bytes)
    )


def _describe(node: Node, status: int, body: bytes, own: NodeLoad) -> None:
    if status in (401, 403):
        node.lose(State.UNREADY, f"GET {NODE_PATH} answered {status}: it holds another cluster secret")
    elif status != 200:
        node.lose(State.UNREADY, f"GET {NODE_PATH} answered {status}: it is no Baton node")
    else:
        try:
            node.describe(msgspec.json.decode(body, type=NodeInfo), own)
        except DECODE_ERRORS as exc:
            node.lose(State.UNREADY, f"GET {NODE_PATH} answered something else than a description: {exc}")
