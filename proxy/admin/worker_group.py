"""Aggregates state and metrics of all worker processes, and replicates administrators' changes to them.

With one worker there is no slot, no file and no socket, and the answer is its own.
"""

import asyncio
import logging
import os
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, Final, TypeVar

import msgspec
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from baton.proxy.admin import node_metrics, node_views
from baton.proxy.admin.metric_families import Family, Sample, added_up, families, lasting, metrics
from baton.proxy.admin.override_store import OverrideStore, OverrideStoreError
from baton.proxy.admission.admission import Admission
from baton.proxy.nodes.latency_histogram import Tally, tallied, tally
from baton.proxy.nodes.overrides import AdminOverrides
from baton.proxy.nodes.registry import NodeRegistry
from baton.proxy.nodes.views import LeavingView, NodeView, WorkerView
from baton.proxy.telemetry.metrics import Metrics, render
from baton.proxy.workers.channel import Channel, NoAnswerError, ask, decode, encode
from baton.proxy.workers.slot import WorkerSlot, replace_file

logger = logging.getLogger(__name__)

TICK_S: Final = 1.0  # what has been counted is written down so often, and orders that were not heard are read
REPORT, ADOPT, PROBE = "report", "adopt", "probe"
T = TypeVar("T")


class Counted(msgspec.Struct, frozen=True):
    """What has been counted, and what outlives a worker of it."""

    families: list[Family] = []
    times: list[Tally] = []


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker says about itself when another one asks."""

    worker: WorkerView
    counted: Counted
    nodes: list[NodeView] = []
    leaving: list[LeavingView] = []


class WorkerGroup:
    """This worker of the proxy, and how it asks the other ones."""

    def __init__(
        self,
        members: NodeRegistry,
        counted: Metrics,
        admission: Admission,
        slot: WorkerSlot | None = None,
        *,
        retries_left: Callable[[], int] = lambda: 0,  # what this worker's requests may still repeat
    ) -> None:
        self._members = members
        self._retries_left = retries_left
        self._made_s = time.monotonic()
        self._admission = admission
        self._counted = counted
        self._slot = slot
        self._book = OverrideStore(slot.orders) if slot else None
        self._channel = Channel(slot.channel_of(slot.number), self._answer) if slot else None
        self._version = 0
        self._carried = Counted()  # counted by former workers in this slot
        self._tasks: set[asyncio.Task[None]] = set()
        self.tells: dict[str, Callable[[], bytes]] = {}  # further words, and what this worker answers

    async def start(self, probes_timeout_s: float) -> None:
        """Take over what is ordered and was counted, and wait for the first probes: then requests may come."""
        if self._slot is None or self._book is None or self._channel is None:
            return
        self._carried = _read_counters(self._slot, self._slot.number)
        self._write_counters(self._count())  # that it was started is known even if it ends at once
        self._members.on_forgotten = lambda orders: self._spawn(self._forget(orders))
        self._adopt(self._book)
        await self._channel.start()
        self._spawn(self._run())
        await self._members.probed(probes_timeout_s)

    async def stop(self) -> None:
        """Write down what was counted; idempotent."""
        if self._slot is None or self._channel is None:
            return
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._write_counters(self._count())
        await self._channel.stop()

    # --- asked ---

    async def metrics(self) -> bytes:
        """Return the series of all workers in Prometheus' text format."""
        reports = await self._reports()
        nodes = node_views.joined(report.nodes for report in reports)
        summed = _of_members(added_up(report.counted.families for report in reports), nodes)
        names = {(node.role, node.url) for node in nodes}
        times = tallied(report.counted.times for report in reports)
        timed = node_metrics.times(each for each in times if (each.role, each.url) in names)
        return render([*metrics(summed), *timed, *node_metrics.states(nodes)])

    async def nodes(self) -> list[NodeView]:
        return node_views.joined(report.nodes for report in await self._reports())

    async def state(self) -> dict[str, Any]:
        """Return everything about membership and admission, for `/admin/state`."""
        reports = await self._reports()
        return {
            **self._members.state(),
            "uptime_s": max(report.worker.uptime_s for report in reports),
            "workers": [report.worker for report in reports],
            "nodes": node_views.joined(report.nodes for report in reports),
            "leaving": node_views.leaving(report.leaving for report in reports),
        }

    async def change(self, act: Callable[[], T]) -> T:
        """Change the members in all workers, or in none. Raises `OverrideStoreError`: it cannot be written down now."""
        if self._book is None:
            return act()
        async with self._book.locked():
            self._adopt(self._book)
            before = self._members.orders()
            result = act()
            try:
                self._write_orders(self._book, self._members.orders(self._version + 1))
            except OverrideStoreError:
                self._members.adopt(before)
                raise
        await self._tell(ADOPT)
        return result

    async def probe_now(self) -> None:
        """Let all workers probe all nodes at once."""
        self._members.probe_now()
        await self._tell(PROBE)

    async def all_tell(self, word: str) -> list[bytes]:
        """Return what each worker says to a word of `tells`, this one's first; those that do not answer are left out."""
        paths = [self._slot.channel_of(number) for number in self._slot.others] if self._slot else []
        answers = await asyncio.gather(*(ask(path, word) for path in paths), return_exceptions=True)
        return [self.tells[word](), *(answer for answer in answers if isinstance(answer, bytes))]

    @property
    def size(self) -> int:
        return self._slot.workers if self._slot else 1

    @property
    def number(self) -> int:
        return self._slot.number if self._slot else 0

    # --- among workers ---

    async def _answer(self, word: str) -> bytes:
        if word == REPORT:
            return encode(self._report())
        if word == ADOPT and self._book is not None:
            return b"done" if self._catch_up(self._book) else b"later"
        if word == PROBE:
            self._members.probe_now()
        if word in self.tells:
            return self.tells[word]()
        return b"done"

    async def _reports(self) -> list[Report]:
        if self._slot is None:
            return [self._report()]
        others = await asyncio.gather(*(_report_of(self._slot, number) for number in self._slot.others))
        return sorted((self._report(), *others), key=lambda report: report.worker.worker)

    async def _tell(self, word: str) -> None:
        if self._slot is None:
            return
        asked = (ask(self._slot.channel_of(number), word) for number in self._slot.others)
        answers = await asyncio.gather(*asked, return_exceptions=True)
        silent = [number for number, answer in zip(self._slot.others, answers, strict=True) if answer != b"done"]
        if silent:  # one that starts will read it, one that is busy within a tick
            logger.warning("some workers did not answer", extra={"workers": silent, "asked": word})

    def _report(self) -> Report:
        """Say where this worker stands. What it says that it has counted it has written down: no scrape sees it shrink."""
        found = self._count()
        if self._slot is not None:
            self._write_counters(found)
        nodes, leaving = list(map(node_views.view, self._members.all())), self._members.leaving()
        worker = WorkerView(
            worker=self.number,
            pid=os.getpid(),
            uptime_s=time.monotonic() - self._made_s,
            in_flight=self._admission.claims.requests,
            requests=sum(each.requests for each in nodes) + sum(each.requests for each in leaving),
            retries_left=self._retries_left(),
            admission=self._admission.state(),
        )
        return Report(worker=worker, counted=found, nodes=nodes, leaving=leaving)

    async def _run(self) -> None:
        assert self._slot is not None
        assert self._book is not None
        while True:
            self._slot.beat()
            await asyncio.sleep(TICK_S)
            self._write_counters(self._count())
            self._catch_up(self._book)

    # --- what operators ordered ---

    def _adopt(self, book: OverrideStore) -> None:
        orders = book.read()
        if orders.version > self._version:
            self._members.adopt(orders)
            self._version = orders.version

    def _catch_up(self, book: OverrideStore) -> bool:
        """Adopt what is ordered; a file that cannot be read now is looked at again at the next tick."""
        try:
            self._adopt(book)
        except OverrideStoreError as exc:
            logger.warning("orders could not be read", extra={"reason": str(exc)})
            return False
        return True

    def _write_orders(self, book: OverrideStore, orders: AdminOverrides) -> None:
        if not orders.same_as(book.read()):
            book.write(orders)
            self._version = orders.version

    async def _forget(self, orders: AdminOverrides) -> None:
        """What this worker sees come to its end has come to its end for all, also for those that start later."""
        assert self._book is not None
        with suppress(OverrideStoreError):
            async with self._book.locked():
                self._write_orders(self._book, self._book.read().without(orders))
                self._members.adopt(self._book.read())
            await self._tell(ADOPT)

    # --- what was counted ---

    def _count(self) -> Counted:
        nodes = self._members.all()
        own = [*self._counted.registry.collect(), node_metrics.openings([node_views.view(node) for node in nodes])]
        if self._slot is not None:
            own += _crew_metrics(self._slot)
        times = tallied((self._carried.times, (tally(node.role, node.url, node.times) for node in nodes)))
        return Counted(added_up((self._carried.families, families(own))), times)

    def _write_counters(self, found: Counted) -> None:
        assert self._slot is not None
        kept = Counted(lasting(found.families), found.times)
        try:
            replace_file(self._slot.counters_of(self._slot.number), msgspec.json.encode(kept))
        except OSError as exc:  # a full disk: worse counters after a crash, and nothing else
            logger.warning("counters could not be written down", extra={"reason": exc.strerror})

    def _spawn(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def _report_of(slot: WorkerSlot, number: int) -> Report:
    """Ask a worker; if it does not answer, what was counted in its slot is known all the same."""
    try:
        return decode(await ask(slot.channel_of(number), REPORT), Report)
    except (NoAnswerError, msgspec.DecodeError):
        return Report(worker=WorkerView(worker=number, pid=None, requests=0), counted=_read_counters(slot, number))


def _read_counters(slot: WorkerSlot, number: int) -> Counted:
    try:
        return msgspec.json.decode(slot.counters_of(number).read_bytes(), type=Counted)
    except FileNotFoundError:
        return Counted()


def _of_members(found: Iterable[Family], nodes: Iterable[NodeView]) -> list[Family]:
    """Leave out the breakers of nodes that have left."""
    names = {(node.role, node.url) for node in nodes}

    def kept(lines: list[Sample]) -> list[Sample]:
        return [line for line in lines if (line.labels["role"], line.labels["url"]) in names]

    return [
        msgspec.structs.replace(each, samples=kept(each.samples)) if each.name == node_metrics.OPENINGS else each
        for each in found
    ]


def _crew_metrics(slot: WorkerSlot) -> list[Metric]:
    """Return this worker's part of what there is to know of all: 1 that answers, and whether it replaced another."""
    restarts = CounterMetricFamily("baton_worker_restarts", "How often a worker that ended was started again")
    restarts.add_metric((), int(slot.starts > 1))
    answering = GaugeMetricFamily("baton_workers", "Workers that answered this scrape")
    answering.add_metric((), 1)
    return [restarts, answering]
