"""One worker, whose files fail it."""

import asyncio
import errno
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from baton.contracts.configuration.schema import ProxyConfig
from baton.proxy.admin import override_store, worker_group
from baton.proxy.admin.override_store import OverrideStore, OverrideStoreError
from baton.proxy.admin.worker_group import Counted, WorkerGroup
from baton.proxy.admission.admission import Admission
from baton.proxy.http.upstream import Upstream
from baton.proxy.nodes.latency_histogram import Tally
from baton.proxy.nodes.overrides import AdminOverrides
from baton.proxy.nodes.registry import NodeRegistry
from baton.proxy.telemetry.metrics import Metrics
from baton.proxy.workers.slot import WorkerSlot
from tests.support.fake_vllm import SECRET

NODE = "http://127.0.0.1:1"


@asynccontextmanager
async def worker(
    directory: Path, pulse: int | None = None, starts: int = 1
) -> AsyncIterator[tuple[WorkerGroup, NodeRegistry]]:
    """Run what one worker of two knows of both."""
    config = ProxyConfig()
    upstream = Upstream(connect_timeout_s=1.0)
    members = NodeRegistry(config, SECRET, upstream)
    admission = Admission(config, members=lambda: 0, waited=lambda _: None)
    slot = WorkerSlot(number=0, workers=2, directory=directory, pulse=pulse, starts=starts)
    made = WorkerGroup(members, Metrics(), admission, slot)
    await members.start()
    await made.start(0.1)
    try:
        yield made, members
    finally:
        await made.stop()
        await members.stop()
        await upstream.stop()


async def test_times_that_a_former_worker_left_go_with_their_node(tmp_path: Path) -> None:
    """A node that is no member any more has no series; one that is has what was timed before."""
    left, here = "http://127.0.0.1:2", NODE
    tallies = [Tally("decode", url, {"ended": [1] * 13}, {"ended": 1.0}) for url in (left, here)]
    slot = WorkerSlot(number=0, workers=2, directory=tmp_path, pulse=None, starts=1)
    slot.counters_of(0).write_bytes(msgspec.json.encode(Counted(times=tallies)))

    async with worker(tmp_path) as (made, members):
        members.add("decode", here)
        text = (await made.metrics()).decode()

    assert f'baton_leg_seconds_count{{role="decode",until="ended",url="{here}"}} 13.0' in text
    assert left not in text


async def test_a_worker_that_cannot_read_the_orders_lives_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Too many open files, for a while: it goes on telling that it is well, and reads them later."""
    monkeypatch.setattr(worker_group, "TICK_S", 0.01)
    ear, pulse = os.pipe()
    os.set_blocking(ear, False)
    read, fails = Path.read_bytes, True

    def reading(self: Path) -> bytes:
        if fails:
            raise OSError(errno.EMFILE, "Too many open files")
        return read(self)

    async with worker(tmp_path, pulse) as (_, members):
        monkeypatch.setattr(Path, "read_bytes", reading)
        OverrideStore(tmp_path / "orders.json").write(AdminOverrides(version=7, added={"decode": (NODE,)}))
        await asyncio.sleep(0.1)
        os.read(ear, 1000)
        await asyncio.sleep(0.1)
        beats = os.read(ear, 1000)
        fails = False
        await asyncio.sleep(0.1)
        urls = [node.url for node in members.decode]
    for end in (ear, pulse):
        os.close(end)

    assert beats
    assert urls == [NODE]


async def test_an_order_that_cannot_be_written_down_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk: no worker would do what this one does, so it does not either; its operator is told."""

    def full(path: Path, _content: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    async with worker(tmp_path) as (made, members):
        await made.change(lambda: members.add("decode", NODE))
        monkeypatch.setattr(override_store, "replace_file", full)
        with pytest.raises(OverrideStoreError, match="No space left"):
            await made.change(lambda: members.add("decode", NODE + "1"))
        with pytest.raises(OverrideStoreError, match="No space left"):
            await made.change(lambda: members.remove(members.decode[0]))
        urls = [node.url for node in members.decode]

    assert urls == [NODE]


async def test_a_worker_that_dies_soon_is_counted(tmp_path: Path) -> None:
    """Each start is on record before the worker does anything else."""
    shown = []
    for starts in (1, 2, 3):
        async with worker(tmp_path, starts=starts) as (made, _):
            kept = (tmp_path / "0.json").read_bytes()
            shown.append([line for line in (await made.metrics()).splitlines() if b"worker_restarts_total" in line])
        (tmp_path / "0.json").write_bytes(kept)  # it was killed instead

    assert [float(line.split()[-1]) for (_, _, line) in shown] == [0, 1, 2]
