"""What the connector costs the model thread: its hooks in each layer.

A step of a made-up model: in each layer, some Python, as in an eager forward pass, then work without the GIL. The hooks
go through the facade that vLLM calls. Opposite them a live sender pushes every hand-over through Mooncake: waking it, and
waiting for the GIL, is measured too. Small layers would share a hand-over; here each goes alone, which large ones cost.

The prefill rank is as it is in production: worker, state machine, sender thread, control thread and transfer engine.
The decode rank's part is a few messages, handed to the worker as its control thread would, and memory that some other
process offers: so nothing of it uses the CPU of the process that is measured.
"""

import hashlib
import itertools
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from baton.contracts.configuration.schema import TransferConfig
from baton.contracts.secret import ClusterSecret
from baton.kv_connector.config import ConnectorConfig
from baton.kv_connector.connector import BatonConnector
from baton.kv_connector.engine.base import EngineFactory
from baton.kv_connector.handoff.metadata import PrefillStep, StartedPrompt, Step
from baton.kv_connector.handoff.outgoing import Progress, Prompt
from baton.kv_connector.layout.regions import Region
from baton.kv_connector.protocol.messages import Body, Hello, Message, Rank, Reserve, encode
from baton.kv_connector.worker_side.caches import Caches
from baton.kv_connector.worker_side.prefill import PrefillWorker
from baton.kv_connector.worker_side.rank_descriptor import RankDescriptor
from baton.kv_connector.worker_side.sides import WorkerSides
from baton.kv_connector.worker_side.sync import HOST_STREAM
from baton.loadtest.mock_engine.rules import FINGERPRINT
from benchmarks.harness import BenchError

BLOCK_TOKENS: Final = FINGERPRINT.block_size_tokens
PATIENCE_S: Final = 30.0
POLL_S: Final = 0.005
_PREFILL, _DECODE = 11, 22  # incarnations
_PEER: Final = ("accept", b"played")  # where answers go: no process reads them
CHUNK_BLOCKS: Final = 32  # that a step computes, of all requests together
STEPS: Final = 4  # of a prompt
PAUSE_S: Final = 0.02  # before a batch, for the reservations to be taken in
PYTHON_S: Final = 0.0003  # of each layer, holding the GIL
_HASHED: Final = bytes(600_000)  # about 0.7 ms without the GIL


@dataclass(frozen=True, slots=True, kw_only=True)
class KvShape:
    """How a KV cache is laid out: layer by layer, without gaps."""

    layers: int
    blocks: int  # of the pool
    block_bytes: int

    @property
    def total_bytes(self) -> int:
        return self.layers * self.blocks * self.block_bytes

    def regions(self, base_addr: int) -> tuple[Region, ...]:
        size = self.blocks * self.block_bytes
        return tuple(
            Region(
                name=f"model.layers.{i}.self_attn.attn",
                layer=i,
                base_addr=base_addr + i * size,
                block_bytes=self.block_bytes,
                stride_bytes=self.block_bytes,
                num_blocks=self.blocks,
            )
            for i in range(self.layers)
        )


class Target(NamedTuple):
    """Memory of another process that may be written to."""

    session: str
    address: int


class PlayedTransfer(NamedTuple):
    """One prompt and its blocks, which are the same here and there."""

    name: str
    blocks: Sequence[int]

    @property
    def prompt(self) -> Prompt:
        """The prompt fills its last block."""
        return Prompt(len(self.blocks) * BLOCK_TOKENS, len(self.blocks), self.name.encode())


class PrefillRank:
    """A started prefill worker that knows one decode rank."""

    def __init__(self, *, shape: KvShape, address: int, engines: EngineFactory, target: Target, folder: Path) -> None:
        """`address` is that of our KV cache."""
        self._target = target
        self._sequence = itertools.count(1)
        caches = Caches(
            layer_of={region.name: region.layer for region in shape.regions(address)},
            regions=shape.regions(address),
            num_blocks=shape.blocks,
            block_tokens=BLOCK_TOKENS,
        )
        self.layer_names = list(caches.layer_of)
        patient = TransferConfig(
            layer_sync="event", peer_timeout_s=3600.0, transfer_timeout_s=3600.0, orphan_timeout_s=3600.0
        )
        self.worker = PrefillWorker(
            config=ConnectorConfig(runtime_dir=folder, secret_file=folder / "secret", weights="w", transfer=patient),
            secret=ClusterSecret(os.urandom(32)),
            introduction=RankDescriptor("P", "prefill", Rank(), FINGERPRINT, caches),
            engines=engines,
            incarnation=_PREFILL,
            stream=HOST_STREAM,
            digests=lambda *_: b"",  # `kv_verify` is off
        )
        self.worker.start()
        hello = Hello(node="D", rank=Rank(), fingerprint=FINGERPRINT, regions=list(shape.regions(target.address)))
        self._say(0, hello)

    def reserve(self, transfer: PlayedTransfer) -> None:
        self._say(
            _PREFILL,
            Reserve(
                transfer_id=transfer.name,
                epoch=1,
                engine=self._target.session,
                tokens=transfer.prompt.tokens,
                from_token=0,
                blocks=[list(transfer.blocks)],
                prompt_hash=transfer.prompt.prompt_hash,
            ),
        )

    def wait_for_commits(self, count: int) -> None:
        """Wait for so many commits. Raises `BenchError`: one failed, or is late."""
        give_up = time.monotonic() + PATIENCE_S
        while (snapshot := self.worker.snapshot())["totals"]["committed"] < count:
            if snapshot["failures"] or time.monotonic() > give_up:
                raise BenchError(f"{snapshot['totals']['committed']} of {count} transfers: {snapshot}")
            time.sleep(POLL_S)

    def _say(self, receiver: int, body: Body) -> None:
        self.worker.on_payload(_PEER, encode(Message(_DECODE, receiver, next(self._sequence), body)))


SHAPE: Final = KvShape(layers=32, blocks=256, block_bytes=4096)


class Case:
    """One number of requests in a step."""

    def __init__(self, requests: int, rank: PrefillRank) -> None:
        self.requests = requests
        self.hooks_s: list[float] = []  # both hooks of a layer, one sample per layer
        self._rank = rank
        self._connector = BatonConnector.__new__(BatonConnector)  # the constructor asks for all of vLLM's configuration
        self._connector._worker = WorkerSides("prefill", rank.worker, None, pushes_layers=True)
        self._held: list[str] = []  # prompts of the last batch: vLLM asks us whether their blocks may go
        self._batches = 0

    def compute_prompts(self) -> None:
        """Compute a batch of prompts in several steps, and wait until all of them have been pushed."""
        per_request = CHUNK_BLOCKS * STEPS // self.requests
        self._batches += 1
        prompts = []
        for i in range(self.requests):
            ids = range(1 + i * per_request, 1 + (i + 1) * per_request)  # block 0 is vLLM's null block
            prompts.append(PlayedTransfer(f"{self.requests}-{self._batches}-{i}", ids))
        committed = self._rank.worker.snapshot()["totals"]["committed"]
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


def _step(prompts: Sequence[PlayedTransfer], index: int, blocks: int, holds: Sequence[str]) -> PrefillStep:
    first, stop = index * blocks, (index + 1) * blocks
    return PrefillStep(
        started=[StartedPrompt(each.name, each.name, each.prompt) for each in prompts] if index == 0 else [],
        progress=[Progress(each.name, [list(each.blocks[first:stop])], stop) for each in prompts],
        holds=list(holds),
    )


def _compute_layer() -> None:
    until = time.perf_counter() + PYTHON_S
    while time.perf_counter() < until:
        pass
    hashlib.blake2b(_HASHED).digest()
