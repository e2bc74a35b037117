"""How fast the bytes go, unthrottled: through everything of ours, and through Mooncake alone."""

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from baton.kv_connector.engine.mooncake import MooncakeFactory
from baton.kv_connector.engine.mooncake_sender import MooncakeSender
from baton.kv_connector.handoff.metadata import PrefillStep
from baton.kv_connector.layout.copy_plan import CopyPlan, plan_layers
from benchmarks.harness import HostMemory, ratio
from benchmarks.microbench.figures import Figure, spread
from benchmarks.microbench.figures import Target as Goal
from benchmarks.microbench.rank import KvShape, PlayedTransfer, PrefillRank, RankError, Target

MIB: Final = 1 << 20
LAYERS: Final = 8
DESCRIPTOR_BYTES: Final = (64 << 10, 256 << 10, 1 << 20)
PUSH_BYTES: Final = (16 * MIB, 64 * MIB)
CACHE_BYTES: Final = 2 * max(PUSH_BYTES)  # every second block is used, so that no two make one descriptor
ROUNDS: Final = 15
AT_LEAST: Final = 0.9
POLL_S: Final = 0.0002
PAUSE_S: Final = 0.01  # between samples, so that none meets the last one's end


class Pusher:
    """The same bytes and descriptors, on three ways."""

    def __init__(self, block_bytes: int, memory: HostMemory, target: Target, host: str, folder: Path) -> None:
        self._shape = KvShape(layers=LAYERS, blocks=CACHE_BYTES // LAYERS // block_bytes, block_bytes=block_bytes)
        self._target = target
        self._memory = memory
        self._engines = MooncakeFactory(host=host)
        self.raw: MooncakeSender = self._engines.sender([(memory.address, memory.size)])
        self.rank = PrefillRank(
            shape=self._shape,
            address=memory.address,
            engines=MooncakeFactory(host=host),
            target=target,
            folder=folder,
            layer_sync="event",
        )

    def close(self) -> None:
        self.rank.stop()
        self._engines.close()

    def plan(self, size: int) -> CopyPlan:
        prompt = self._prompt(size)
        regions = zip(self._shape.regions(self._memory.address), self._shape.regions(self._target.address), strict=True)
        return plan_layers(list(regions), prompt.source, prompt.destination)

    def through_connector(self, size: int, poll_s: float = 0.005) -> float:
        """Hand over all layers; return the seconds until COMMIT. Raises `RankError`: other bytes than planned went."""
        before = self.rank.worker.snapshot()["totals"]
        prompt = self._prompt(size)
        self.rank.reserve(prompt)
        time.sleep(PAUSE_S)
        worker = self.rank.worker
        began = time.monotonic()
        step = PrefillStep(started=[prompt.started()], progress=[prompt.progress(0, len(prompt.source))])
        worker.begin_step(step)
        for name in self.rank.layer_names:
            worker.attention_begins(name)
            worker.layer_written(name)
        worker.end_step()
        snapshot = self.rank.wait_for_commits(before["committed"] + 1, poll_s)
        plan, totals = self.plan(size), snapshot["totals"]
        pushed = [totals[name] - before[name] for name in ("bytes", "descriptors")]
        if pushed != [plan.total_bytes, len(plan)]:
            raise RankError(f"{pushed} bytes and descriptors were pushed instead of {[plan.total_bytes, len(plan)]}")
        commit = snapshot["recent"][-1]
        committed_at: float = commit["scheduled_at_s"] + commit["timings_s"]["commit"]
        return committed_at - began

    def through_engine(self, plan: CopyPlan) -> float:
        """Submit all copies at once and look after them, sleeping; return the seconds."""
        began = time.monotonic()
        push = self.raw.submit(self._target.session, plan)
        while (ok := push.poll()) is None:
            time.sleep(POLL_S)
        if not ok:
            raise RankError("Mooncake failed the raw push")
        return time.monotonic() - began

    def through_batch_call(self, plan: CopyPlan) -> float:
        """Let Mooncake's own synchronous call do it; return the seconds."""
        sources, destinations, lengths = (list(column) for column in zip(*plan, strict=True))
        began = time.monotonic()
        engine = self.raw._engine  # this call is not what our wrapper offers
        if engine.batch_transfer_sync_write(self._target.session, sources, destinations, lengths):
            raise RankError("Mooncake failed the batch call")
        return time.monotonic() - began

    def _prompt(self, size: int) -> PlayedTransfer:
        blocks = size // LAYERS // self._shape.block_bytes
        scattered = range(1, 2 * blocks, 2)  # no two of them side by side; block 0 is vLLM's null block
        return PlayedTransfer(f"{time.monotonic_ns()}", scattered, scattered)


def measure(target: Sequence[Any], host: str) -> Iterator[Figure]:
    memory = HostMemory(CACHE_BYTES)
    with tempfile.TemporaryDirectory() as folder:
        for descriptor_bytes in DESCRIPTOR_BYTES:
            pusher = Pusher(descriptor_bytes, memory, Target(*target), host, Path(folder))
            for size in PUSH_BYTES:
                yield _compare(pusher, size, descriptor_bytes)
            pusher.close()


def _compare(pusher: Pusher, size: int, descriptor_bytes: int) -> Figure:
    plan = pusher.plan(size)
    ways: dict[str, Callable[[], float]] = {
        "ours": lambda: pusher.through_connector(size),
        "engine": lambda: pusher.through_engine(plan),
    }
    samples: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(1 + ROUNDS):
        for name, way in ways.items():
            taken_s = way()
            if turn:  # the first one warms up
                samples[name].append(taken_s)
            time.sleep(PAUSE_S)
    return Figure(
        name=f"{size // MIB} MiB in {descriptor_bytes >> 10} KiB: ours / engine alone",
        value=ratio(samples["engine"], samples["ours"]).median,
        target=Goal("at least", AT_LEAST),
        details={f"{name} MB/s": size / spread(taken).median / 1e6 for name, taken in samples.items()},
    )
