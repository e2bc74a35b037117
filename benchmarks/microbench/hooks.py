"""What the connector costs the model thread: its hooks in each layer.

A step of a made-up model: in each layer, some Python, as in an eager forward pass, then work without the GIL. The hooks
go through the facade that vLLM calls. Opposite them a live sender takes every hand-over in and pushes it through
Mooncake. So what is measured contains waking the sender and waiting for the GIL where a hook has to. Small layers would
go together, several with one hand-over; here each goes alone, which is what large ones cost.
"""

import hashlib
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from baton.kv_connector.connector import BatonConnector
from baton.kv_connector.engine.mooncake import MooncakeFactory
from baton.kv_connector.handoff.metadata import PrefillStep, Step
from baton.kv_connector.worker_side import sender
from baton.kv_connector.worker_side.sides import WorkerSides
from baton.kv_connector.worker_side.sync import POLICIES
from benchmarks.harness import HostMemory
from benchmarks.microbench.figures import Figure, spread
from benchmarks.microbench.figures import Target as Goal
from benchmarks.microbench.rank import KvShape, PlayedTransfer, PrefillRank, Target

SHAPE: Final = KvShape(layers=32, blocks=256, block_bytes=4096)
AT_MOST_US: Final = {1: 30.0, 16: 60.0}  # requests in a step → time in the hooks of one layer
CHUNK_BLOCKS: Final = 32  # that a step computes, of all requests together
STEPS: Final = 4  # of a prompt
ROUNDS: Final = 8
PAUSE_S: Final = 0.02  # before a batch, for the reservations to be taken in
PYTHON_S: Final = 0.0003  # of each layer, holding the GIL
_HASHED: Final = bytes(600_000)  # about 0.7 ms without the GIL


class Case:
    """One policy at one number of requests."""

    def __init__(self, policy: str, requests: int, rank: PrefillRank) -> None:
        self.policy, self.requests = policy, requests
        self.hooks_s: list[float] = []  # both hooks of a layer, one sample per layer
        self._rank = rank
        self._connector = facade(rank.worker)
        self._held: list[str] = []  # prompts of the last batch: vLLM asks us whether their blocks may go
        self._batches = 0

    def compute_prompts(self) -> None:
        """Compute a batch of prompts in several steps, and wait until all of them have been pushed."""
        per_request = CHUNK_BLOCKS * STEPS // self.requests
        self._batches += 1
        prompts = []
        for i in range(self.requests):
            ids = range(1 + i * per_request, 1 + (i + 1) * per_request)  # block 0 is vLLM's null block
            prompts.append(PlayedTransfer(f"{self.policy}-{self.requests}-{self._batches}-{i}", ids, ids))
        committed = self._rank.committed
        for prompt in prompts:
            self._rank.reserve(prompt)
        time.sleep(PAUSE_S)
        for index in range(STEPS):
            self._compute(_step(prompts, index, per_request // STEPS, self._held if index == 0 else ()))
        self._held = [prompt.name for prompt in prompts]
        self._rank.wait_for_commits(committed + len(prompts))

    def _compute(self, step: PrefillStep) -> None:
        clock, connector = time.perf_counter, self._connector
        connector.bind_connector_metadata(Step(prefill=step))
        for region in SHAPE.regions(0):
            before = clock()
            connector.wait_for_layer_load(region.name)
            waited = clock()
            _compute_layer()
            computed = clock()
            connector.save_kv_layer(region.name, None, None)  # type: ignore[arg-type]  # ours looks at the name alone
            self.hooks_s.append(waited - before + clock() - computed)
        connector.wait_for_save()
        connector.get_transfer_results(set())


def facade(worker: Any) -> BatonConnector:
    """Return vLLM's view of a worker; the constructor would ask for all of vLLM's configuration."""
    made = BatonConnector.__new__(BatonConnector)
    made._worker = WorkerSides("prefill", worker, None, pushes_layers=True)
    return made


def measure(target: Sequence[Any], host: str) -> Iterator[Figure]:
    sender.WORTH_BYTES = 0  # no layer is too small to be handed over alone
    memory = HostMemory(SHAPE.total_bytes)
    with tempfile.TemporaryDirectory() as folder:
        ranks = {policy: start_rank(policy, memory, Target(*target), Path(folder), host) for policy in POLICIES}
        cases = [Case(policy, requests, rank) for requests in AT_MOST_US for policy, rank in ranks.items()]
        for case in cases:
            case.compute_prompts()  # nodes meet, caches fill
            case.hooks_s.clear()
        for _ in range(ROUNDS):
            for case in cases:
                case.compute_prompts()
        for rank in ranks.values():
            rank.stop()
    for case in cases:
        us = spread(case.hooks_s, 1e6)
        yield Figure(
            name=f"{case.policy}, {case.requests} per step: hooks of a layer, mean",
            value=us.mean,
            unit="µs",
            target=Goal("at most", AT_MOST_US[case.requests]),
            details={"median": us.median, "99 %": us.p99, "max": us.most},
        )


def start_rank(policy: str, memory: HostMemory, target: Target, folder: Path, host: str) -> PrefillRank:
    engines = MooncakeFactory(host=host)
    return PrefillRank(
        shape=SHAPE, address=memory.address, engines=engines, target=target, folder=folder, layer_sync=policy
    )


def _step(prompts: Sequence[PlayedTransfer], index: int, blocks: int, holds: Sequence[str]) -> PrefillStep:
    return PrefillStep(
        started=[prompt.started() for prompt in prompts] if index == 0 else [],
        progress=[prompt.progress(index * blocks, (index + 1) * blocks) for prompt in prompts],
        holds=list(holds),
    )


def _compute_layer() -> None:
    until = time.perf_counter() + PYTHON_S
    while time.perf_counter() < until:
        pass
    hashlib.blake2b(_HASHED).digest()
