"""The members: a configured list, probed all the time, marked at once when a leg fails on one of them."""

import asyncio
import logging
from collections.abc import Iterable
from typing import Final

import msgspec
from yarl import URL

from contracts.configuration.schema import ProxyConfig
from contracts.http import NODE_PATH
from contracts.node_info import NodeInfo
from contracts.secret import ClusterSecret
from proxy.errors import Kind, UpstreamError
from proxy.node import Node, Role, State
from proxy.upstream import Upstream

logger = logging.getLogger(__name__)

# What says that the node itself is gone, as against one request that it did not like.
_GONE: Final = frozenset((Kind.CONNECT, Kind.DISCONNECT))


class Members:
    """All nodes, each with a task that probes it."""

    def __init__(self, config: ProxyConfig, secret: ClusterSecret, upstream: Upstream) -> None:
        self.prefill = _nodes(config.prefill, "prefill")
        self.decode = _nodes(config.decode, "decode")
        self._interval_s = config.probe_interval_s
        self._timeout_s = config.probe_timeout_s
        self._secret = secret
        self._upstream = upstream
        self._wake = {node: asyncio.Event() for node in self.all()}
        self._tasks: list[asyncio.Task[None]] = []

    def all(self) -> list[Node]:
        """Return every configured node."""
        return [*self.prefill, *self.decode]

    async def start(self) -> None:
        """Begin probing; returns without waiting for an answer."""
        self._tasks = [asyncio.create_task(self._watch(node)) for node in self.all()]

    async def stop(self) -> None:
        """Stop probing."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []

    def report(self, node: Node, kind: Kind) -> None:
        """Learn that a leg failed on a node: use it no more until a probe, made at once, succeeds."""
        if kind in _GONE and node.state is State.READY:
            node.lose(State.DOWN, f"a request failed on it: {kind}")
            logger.warning("node lost", extra={"url": node.url, "role": node.role, "kind": str(kind)})
        self._wake[node].set()

    async def _watch(self, node: Node) -> None:
        wake = self._wake[node]
        while True:
            before = node.state, node.reason
            await self._probe(node)
            if (node.state, node.reason) != before:
                fields = {"url": node.url, "role": node.role, "state": str(node.state), "reason": node.reason}
                logger.info("node changed state", extra=fields)
            wake.clear()
            try:
                async with asyncio.timeout(self._interval_s):
                    await wake.wait()
            except TimeoutError:
                pass

    async def _probe(self, node: Node) -> None:
        try:
            health, _ = await self._get(node, "/health")
            if health != 200:
                node.lose(State.DOWN, f"GET /health answered {health}")
                return
            token = (("authorization", f"Bearer {self._secret.node_token()}"),)
            status, body = await self._get(node, NODE_PATH, token)
        except UpstreamError as exc:
            node.lose(State.DOWN, f"a probe failed: {exc}")
            return
        self._describe(node, status, body)

    def _describe(self, node: Node, status: int, body: bytes) -> None:
        if status in (401, 403):
            node.lose(State.UNREADY, f"GET {NODE_PATH} answered {status}: it holds another cluster secret")
        elif status != 200:
            node.lose(State.UNREADY, f"GET {NODE_PATH} answered {status}: it is no Baton node")
        else:
            try:
                node.describe(msgspec.json.decode(body, type=NodeInfo))
            except msgspec.DecodeError as exc:
                node.lose(State.UNREADY, f"GET {NODE_PATH} answered something else than a description: {exc}")

    async def _get(self, node: Node, path: str, headers: Iterable[tuple[str, str]] = ()) -> tuple[int, bytes]:
        async with self._upstream.get(URL(node.url + path), headers, timeout_s=self._timeout_s) as answer:
            return answer.status, await answer.read_all()


def _nodes(urls: Iterable[str], role: Role) -> list[Node]:
    return [Node(url=url.rstrip("/"), role=role) for url in urls]
