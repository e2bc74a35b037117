"""What nodes are asked for the dashboard: a little of each in turn, and everything of one transfer."""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

import msgspec

from baton.contracts.decoding import DECODE_ERRORS
from baton.contracts.http import TIMELINE_PATH, TRANSFERS_PATH
from baton.contracts.secret import ClusterSecret
from baton.proxy.errors import UpstreamError
from baton.proxy.http.headers import line
from baton.proxy.http.upstream import Upstream
from baton.proxy.nodes.node import Node, State
from baton.proxy.nodes.registry import NodeRegistry

ROUND_S: Final = 1.0
MOST_A_ROUND: Final = 24  # nodes; with more of them each is asked less often
TIMEOUT_S: Final = 2.0
MOST_FAILURES: Final = 64  # remembered
MAX_ANSWER_BYTES: Final = 4 << 20
_ASKED: Final = frozenset((State.READY, State.SILENT, State.DRAINING, State.ISOLATED))


class Nodes:
    """Asks nodes over the node API."""

    def __init__(self, secret: ClusterSecret, upstream: Upstream, members: NodeRegistry) -> None:
        self._secret = secret
        self._upstream = upstream
        self._members = members
        self._said: dict[Node, tuple[float, dict[str, Any]]] = {}  # when it was asked, what it said
        self._known: set[tuple[str, str, str]] = set()  # failures that have been taken in
        self._failures: deque[dict[str, Any]] = deque(maxlen=MOST_FAILURES)
        self._task: asyncio.Task[None] | None = None

    def start(self, while_: Callable[[], bool]) -> None:
        """Go round the nodes for as long as a condition holds; idempotent."""
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(while_))

    async def stop(self) -> None:
        """Ask no more; idempotent."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    def gauges(self) -> dict[str, dict[str, Any]]:
        """Return what nodes said last, by role and URL, each with its age."""
        now_s = time.monotonic()
        return {
            f"{node.role} {node.url}": {"age_s": round(now_s - at_s, 1), **said}
            for node, (at_s, said) in self._said.items()
            if said
        }

    def failures(self) -> list[dict[str, Any]]:
        """Return the transfers whose failures were seen last, the oldest first."""
        return list(self._failures)

    async def timeline(self, url: str, role: str, transfer_id: str) -> dict[str, Any]:
        """Return what a member says of one transfer, or why nothing is known."""
        node = next((node for node in self._members.find(url) if node.role == role), None)
        if node is None:
            return {"problem": f"{url} is no {role} node of this proxy any more"}
        return await self._get(node, f"{TIMELINE_PATH}?transfer_id={transfer_id}")

    async def _run(self, while_: Callable[[], bool]) -> None:
        try:
            while while_():
                await self._round()
                await asyncio.sleep(ROUND_S)
        finally:
            self._said.clear()
            self._known.clear()
            self._failures.clear()

    async def _round(self) -> None:
        members = self._members.all()
        self._said = {node: said for node, said in self._said.items() if node in members}
        usable = [node for node in members if node.state in _ASKED]
        due = sorted(usable, key=lambda node: self._said.get(node, (0.0, {}))[0])[:MOST_A_ROUND]
        await asyncio.gather(*(self._ask(node) for node in due))

    async def _ask(self, node: Node) -> None:
        said = await self._get(node, f"{TRANSFERS_PATH}?brief=1")
        is_first = node not in self._said
        self._said[node] = time.monotonic(), gauge(said)
        for failure in failures_of(said):
            self._take(node, failure, is_old=is_first)

    def _take(self, node: Node, failure: dict[str, Any], *, is_old: bool) -> None:
        """Take in a failure once; nodes do not say when it was, so it is dated when it is first seen."""
        key = node.url, str(failure.get("transfer_id", "")), str(failure.get("state", ""))
        if key in self._known:
            return
        if len(self._known) > 64 * MOST_FAILURES:
            self._known.clear()
        self._known.add(key)
        self._failures.append(
            {
                "at": None if is_old else round(time.time(), 3),  # it was there before we looked
                "role": node.role,
                "url": node.url,
                "transfer": key[1].partition("/")[0],
                "state": key[2] or "failed",
                "reason": str(failure.get("reason", "")),
            }
        )

    async def _get(self, node: Node, target: str) -> dict[str, Any]:
        token = line("authorization", f"Bearer {self._secret.node_token()}")
        try:
            async with self._upstream.get(node.url, target, token, timeout_s=TIMEOUT_S) as answer:
                body = await answer.read_all()
        except UpstreamError as exc:
            return {"problem": f"{node.url}: {exc}"}
        if answer.status != 200 or len(body) > MAX_ANSWER_BYTES:
            return {"problem": f"{node.url} answered {answer.status}"}
        with suppress(*DECODE_ERRORS):
            said = msgspec.json.decode(body)
            if isinstance(said, dict):
                return said
        return {"problem": f"{node.url} answered something else"}


def gauge(said: dict[str, Any]) -> dict[str, Any]:
    """Return the few numbers of a node's brief answer that the page shows; nothing of one that did not answer."""
    scheduler, worker = _table(said, "scheduler"), _table(said, "worker")
    if not scheduler and not worker:
        return {}
    sessions = [str(each.get("state", "")) for each in _tables(worker, "sessions")]
    histograms = {**_table(scheduler, "histograms"), **_table(worker, "histograms")}
    totals = {**_table(scheduler, "totals"), **_table(worker, "totals")}
    return {
        "blocks": scheduler.get("num_blocks"),
        "free": scheduler.get("free_blocks"),
        "reserved": scheduler.get("reserved_blocks"),
        "quarantined": worker.get("quarantined_blocks"),
        "open": worker.get("open_transfers"),
        "sessions": len(sessions),
        "refused_sessions": sessions.count("refused"),
        "pushed_bytes": totals.get("bytes"),
        "hidden": _counted(histograms.get("hidden_share")),  # P's
        "exposed": _counted(histograms.get("exposed_transfer_s")),  # D's
    }


def failures_of(said: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the failures that a node remembers, of both sides."""
    return [failure for side in ("scheduler", "worker") for failure in _tables(_table(said, side), "failures")]


def _counted(histogram: Any) -> list[float] | None:
    """How many values a histogram has, and their sum."""
    if not isinstance(histogram, dict):
        return None
    try:
        return [sum(histogram.get("counts") or ()), float(histogram.get("sum") or 0.0)]
    except (TypeError, ValueError):  # of another version
        return None


def _table(of: dict[str, Any], name: str) -> dict[str, Any]:
    found = of.get(name)
    return found if isinstance(found, dict) else {}


def _tables(of: dict[str, Any], name: str) -> list[dict[str, Any]]:
    found = of.get(name)
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []
