"""What the connector costs the model thread: its hooks in each layer.

A step of a made-up model: in each layer, some Python, as in an eager forward pass, then work without the GIL. The hooks
go through the facade that vLLM calls. Opposite them a live sender takes every hand-over in and pushes it through
Mooncake. So what is measured contains waking the sender and waiting for the GIL where a hook has to. Small layers would
go together, several with one hand-over; here each goes alone, which is what large ones cost.
"""

import hashlib
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from baton.kv_connector.connector import BatonConnector
from baton.kv_connector.engine.mooncake import MooncakeFactory
from baton.kv_connector.handoff.metadata import PrefillStep, Step
from baton.kv_connector.worker_side.sides import WorkerSides
from benchmarks.harness import HostMemory
from benchmarks.quick.rank import KvShape, PlayedTransfer, PrefillRank, Target

SHAPE: Final = KvShape(layers=32, blocks=256, block_bytes=4096)
CHUNK_BLOCKS: Final = 32  # that a step computes, of all requests together
STEPS: Final = 4  # of a prompt
PAUSE_S: Final = 0.02  # before a batch, for the reservations to be taken in
PYTHON_S: Final = 0.0003  # of each layer, holding the GIL
_HASHED: Final = bytes(600_000)  # about 0.7 ms without the GIL


class Case:
    """One number of requests in a step."""

    def __init__(self, requests: int, rank: PrefillRank) -> None:
        self.requests = requests
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
            prompts.append(PlayedTransfer(f"{self.requests}-{self._batches}-{i}", ids, ids))
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


def start_rank(memory: HostMemory, target: Target, folder: Path) -> PrefillRank:
    engines = MooncakeFactory(host="127.0.0.1")
    return PrefillRank(shape=SHAPE, address=memory.address, engines=engines, target=target, folder=folder)


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
