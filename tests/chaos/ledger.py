"""What the nodes say of every request and of their blocks: one picture of all nodes at (nearly) one moment.

`Watch` takes pictures all the time and wakes the tasks that wait for the next. `settle` waits until nothing is left.
"""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final

import aiohttp

from baton.contracts.http import TRANSFERS_PATH
from baton.kv_connector.telemetry.both_sides import REVERSE
from tests.chaos.phases import OnDecode, OnPrefill, View
from tests.chaos.quarantine import Quarantine
from tests.e2e.stack import Server

PICTURE_EVERY_S: Final = 0.025
ANSWER_TIMEOUT_S: Final = 0.5
TAG: Final = "chaos"  # request ids of ours begin with it


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeState:
    """One node's ledger."""

    free_blocks: int
    num_blocks: int
    open_transfers: int
    reservations: int = 0
    quarantined_blocks: int = 0
    totals: dict[str, int] = field(default_factory=dict)

    @property
    def missing_blocks(self) -> int:
        """Blocks that a request, a transfer or the quarantine holds."""
        return self.num_blocks - self.free_blocks

    @property
    def is_empty(self) -> bool:
        """Nothing held, nothing open."""
        return not (self.missing_blocks or self.open_transfers or self.reservations or self.quarantined_blocks)


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """All nodes that answered."""

    at_s: float
    nodes: dict[str, NodeState]
    views: dict[str, View]  # by tag
    open_ids: frozenset[str]  # transfers that some node still knows of


def tag_of(request_id: str) -> str:
    """Return our tag in an engine's request id, such as `cmpl-chaos-17-prefill-0-1a2b3c4d`; "" if there is none."""
    start = request_id.find(TAG + "-")
    if start < 0:
        return ""
    number = request_id[start + len(TAG) + 1 :].partition("-")[0]
    return f"{TAG}-{number}"


def read_node(answer: dict[str, Any]) -> NodeState:
    scheduler, worker = answer["scheduler"], answer["worker"]
    schedulers, workers = _sides(scheduler), _sides(worker)
    totals: Counter[str] = Counter()
    for side in schedulers:
        totals.update({f"scheduler_{name}": n for name, n in side["totals"].items()})
    for side in workers:
        totals.update(side["totals"])
    return NodeState(
        free_blocks=scheduler["free_blocks"],
        num_blocks=scheduler["num_blocks"],
        open_transfers=len(answer["transfers"]),
        reservations=sum(side.get("reservations", 0) for side in schedulers),
        quarantined_blocks=sum(side.get("quarantined_blocks", 0) for side in workers),
        totals=totals,
    )


def _sides(snapshot: dict[str, Any]) -> list[dict[str, Any]]:
    """Return what either side of a node says; one that only sends or receives has one."""
    return [snapshot, *([snapshot[REVERSE]] if REVERSE in snapshot else [])]


def read_views(answers: dict[str, dict[str, Any]]) -> dict[str, View]:
    """Join what all nodes say of each of our requests."""
    views: dict[str, View] = {}
    for node, answer in answers.items():
        for transfer in answer["transfers"]:
            scheduler = transfer.get("scheduler", {})
            flows = transfer.get("flows") or [transfer.get("worker", {})]
            if not (tag := tag_of(scheduler.get("request_id", ""))):
                continue
            view = views.get(tag) or View(transfer_id=transfer["transfer_id"])
            if view.transfer_id != transfer["transfer_id"]:
                continue  # another attempt at the same request
            if scheduler["role"] == "decode":
                views[tag] = replace(view, decode=OnDecode(node=node, state=scheduler["state"]))
            else:
                pushed, expected = (
                    sum(flow.get(f"bytes_{what}", 0) for flow in flows) for what in ("pushed", "expected")
                )
                on_prefill = OnPrefill(
                    node=node, state=scheduler["state"], pushed_bytes=pushed, expected_bytes=expected
                )
                views[tag] = replace(view, prefill=on_prefill)
    return views


def read_open(answers: Iterable[dict[str, Any]]) -> frozenset[str]:
    """Return the transfers that some node knows of, whichever of its sides."""
    return frozenset(transfer["transfer_id"] for answer in answers for transfer in answer["transfers"])


class Watch:
    """Takes pictures of some nodes; a node that does not answer in time is left out."""

    def __init__(self, servers: Iterable[Server], quarantine_max_share: float = 1.0, patience: float = 1.0) -> None:
        self.servers = list(servers)
        self.last = Picture(at_s=0.0, nodes={}, views={}, open_ids=frozenset())
        self.quarantine = Quarantine(quarantine_max_share)
        self._answer_timeout_s = patience * ANSWER_TIMEOUT_S
        self._taken = asyncio.Condition()
        self._http: aiohttp.ClientSession | None = None

    @asynccontextmanager
    async def running(self, every_s: float = PICTURE_EVERY_S) -> AsyncIterator["Watch"]:
        """Take pictures for as long as the block lasts."""
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=self._answer_timeout_s)) as self._http:
            task = asyncio.create_task(self._run(every_s))
            try:
                yield self
            finally:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task

    async def next(self) -> Picture:
        """Wait for the next picture that is begun from now on."""
        now = time.monotonic()
        async with self._taken:
            await self._taken.wait_for(lambda: self.last.at_s >= now)
        return self.last

    async def take(self) -> Picture:
        begun = time.monotonic()
        found = dict(await asyncio.gather(*map(self._ask, self.servers)))
        answers = {name: answer for name, answer in found.items() if answer}
        nodes = {name: read_node(answer) for name, answer in answers.items()}
        for name, node in nodes.items():
            self.quarantine.note(name, node.quarantined_blocks, node.num_blocks, begun)
        views, open_ids = read_views(answers), read_open(answers.values())
        return Picture(at_s=begun, nodes=nodes, views=views, open_ids=open_ids)

    async def _run(self, every_s: float) -> None:
        while True:
            picture = await self.take()
            async with self._taken:
                self.last = picture
                self._taken.notify_all()
            await asyncio.sleep(max(0.0, picture.at_s + every_s - time.monotonic()))

    async def _ask(self, server: Server) -> tuple[str, dict[str, Any]]:
        assert self._http is not None
        headers = {"authorization": f"Bearer {server.token}"}
        with suppress(aiohttp.ClientError, TimeoutError, OSError):
            async with self._http.get(server.url + TRANSFERS_PATH, headers=headers) as response:
                if response.status == 200:
                    return server.name, await response.json()
        return server.name, {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """How long nodes took to give everything back."""

    took_s: dict[str, float]  # since the moment asked for
    left: dict[str, NodeState]  # nodes that did not, or that do not answer


async def settle(watch: Watch, names: Iterable[str], since_s: float, within_s: float) -> Settled:
    """Wait until the named nodes are empty, for at most `within_s` after `since_s`."""
    took: dict[str, float] = {}
    waiting = list(names)
    while True:
        picture = await watch.take()
        for name in list(waiting):
            if (node := picture.nodes.get(name)) and node.is_empty:
                took[name] = max(0.0, picture.at_s - since_s)
                waiting.remove(name)
        if not waiting or time.monotonic() - since_s > within_s:
            nothing = NodeState(free_blocks=0, num_blocks=0, open_transfers=0)
            return Settled(took_s=took, left={name: picture.nodes.get(name, nothing) for name in waiting})
        await asyncio.sleep(0.02)
