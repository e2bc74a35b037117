"""A prefill node on late devices and a virtual clock: the real worker with its threads, and everything around it played.

    model thread   launches a step's layers with the connector's hooks, in vLLM's order, and runs ahead of the device
    devices        one per tensor-parallel rank (`late_device.py`)
    link           one per rank: pushes travel one behind the other at a fixed rate (`late_link.py`)
    decode ranks   a few messages: they greet, and reserve the prompt when the scenario says so

`run(scenario)` returns when each layer was written and left, and what the worker says of it. Nothing here depends on the
machine: it is a simulation, and its figures repeat.
"""

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import patch

from baton.contracts.configuration.schema import TransferConfig
from baton.contracts.kv_transfer import Grid, Grids
from baton.kv_connector.config import ConnectorConfig
from baton.kv_connector.control.loop import PeerKey
from baton.kv_connector.engine.base import EngineFactory, ReceivingEngine
from baton.kv_connector.handoff.metadata import PrefillStep, StartedPrompt
from baton.kv_connector.handoff.outgoing import Progress, Prompt
from baton.kv_connector.layout.regions import Region, Span
from baton.kv_connector.layout.tp_mapping import flow_id
from baton.kv_connector.protocol.messages import Body, Hello, Message, Rank, Reserve, decode, encode
from baton.kv_connector.worker_side import digesting, prefill, sender, waiter
from baton.kv_connector.worker_side.caches import Caches
from baton.kv_connector.worker_side.prefill import PrefillWorker
from baton.kv_connector.worker_side.rank_descriptor import RankDescriptor
from baton.kv_connector.worker_side.sync import ModelStream
from tests.support.described import fingerprint
from tests.support.late_device import LateDevice
from tests.support.late_link import LateLink
from tests.support.ranks import SECRET
from tests.support.virtual_host import VirtualHost

BLOCK_TOKENS, TOKEN_BYTES = 16, 4096  # of K and V, per layer and rank: as Qwen3-8B's with TP 1
BLOCK_BYTES = BLOCK_TOKENS * TOKEN_BYTES
PEER: PeerKey = ("accept", b"played")
MODULES = (sender, waiter, prefill, digesting)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One prompt, and what happens to it."""

    policy: str = "event"
    tp: int = 1
    layers: int = 32
    tokens: int = 2048
    chunks: int = 1
    answers: int = 1  # each further one is a request that finds the whole prompt in P's prefix cache, in the step of the last chunk
    cached_tokens: int = 0  # of the prompt, found in P's prefix cache
    draft_layers: int = 0  # computed behind the target's, with hooks; they travel at the end of the step
    launch_s: float = 0.010  # of all target layers, over all chunks: what it costs the host
    compute_s: float = 0.100  # likewise, what it costs the device
    transfer_s: float = 0.100  # of the whole prompt, on an idle link
    reserved_s: float = 0.0  # after the first step began
    void_before_chunk: int = 0  # the scheduler takes the prompt away before this chunk; 0: it does not


@dataclass(slots=True)
class Layer:
    """One layer of one rank, s since the first step began."""

    written: list[float] = field(default_factory=list)  # by the device, chunk by chunk
    left: list[float] = field(default_factory=list)  # submitted, push by push


@dataclass(slots=True, kw_only=True)
class RankResult:
    """What happened on one rank; instants in s since the first step began."""

    layers: list[Layer]
    targets: int  # of the layers; the rest are a drafter's
    forward_end: float  # when the device had computed the target's layers of the last chunk
    transfer_s: float
    outcome: dict[str, Any]  # the worker's record of the transfer
    link: "LateLink"
    waits: dict[str, int]  # for the device, by thread
    strays: dict[str, int]

    @property
    def before_the_end(self) -> int:
        """How many of the target's layers had left, all of their pushes, before the forward pass had ended."""
        return sum(bool(layer.left) and layer.left[-1] < self.forward_end for layer in self.layers[: self.targets])

    @property
    def hidden_share(self) -> float | None:
        """(C + X - M) / min(C, X), from the clock of the simulation; None without a commit."""
        commit = self.outcome.get("timings_s", {}).get("commit")
        if commit is None:
            return None
        computing, pushing = self.forward_end, self.transfer_s
        return float((computing + pushing - commit) / min(computing, pushing))


@dataclass(slots=True)
class _Engines(EngineFactory):
    link: LateLink

    def sender(self, spans: Sequence[Span]) -> LateLink:
        return self.link

    def receiver(self, spans: Sequence[Span]) -> ReceivingEngine:
        raise NotImplementedError

    def close(self) -> None:
        pass


class _Loop:
    """A `ControlLoop` without sockets: the decode rank is played."""

    def __init__(self, *_: object, **__: object) -> None:
        self.said: list[Body] = []

    def listen(self, *_: object) -> str:
        return "tcp://127.0.0.1:1"

    def start(self) -> None:
        pass

    def stop(self) -> None:
        pass

    def send(self, peer: object, payload: bytes) -> None:
        self.said.append(decode(payload).body)


class LateRank:
    """One prefill rank and the decode rank that it pushes to."""

    def __init__(self, host: VirtualHost, scenario: Scenario, index: int, folder: Path) -> None:
        self._host, self._scenario, self._index = host, scenario, index
        self._all_layers = scenario.layers + scenario.draft_layers
        self._sequence = count(1)
        blocks = scenario.tokens // BLOCK_TOKENS + 1
        size = blocks * BLOCK_BYTES
        sent = scenario.tokens * TOKEN_BYTES * self._all_layers
        self.link = LateLink(host, sent / scenario.transfer_s, lambda address: address // size - 1)
        self.device = LateDevice(host, index=index, launch_s=0.0, record_s=2e-6, wake_s=50e-6)
        self._stream = self.device.stream(blocking=False)
        self.layers = [Layer() for _ in range(self._all_layers)]
        self.forward_end = 0.0
        caches, theirs = self._caches(size, blocks), self._caches(size, blocks)
        rank = Rank(tp=index, tp_size=scenario.tp)
        self.worker = PrefillWorker(
            config=ConnectorConfig(
                runtime_dir=folder,
                secret_file=folder / "secret",
                weights="w",
                transfer=TransferConfig(layer_sync=scenario.policy, peer_timeout_s=3600.0),  # type: ignore[arg-type]  # the schema names them
            ),
            secret=SECRET,
            introduction=RankDescriptor("P", "prefill", rank, fingerprint(BLOCK_TOKENS), caches, (scenario.tp,)),
            engines=_Engines(self.link),
            incarnation=11,
            stream=ModelStream(
                device_type="cuda",
                record=self._stream.record_event,
                synchronize=self._stream.synchronize,
                attention_writes_kv=False,
            ),
            digests=lambda *_: b"",
            enter_device=self.device.enter,
        )
        self.worker.start()
        self.say(
            Hello(node="D", rank=rank, fingerprint=fingerprint(BLOCK_TOKENS), regions=list(theirs.regions)), receiver=0
        )

    def _caches(self, size: int, blocks: int) -> Caches:
        drafts = range(self._scenario.layers, self._all_layers)
        return Caches(
            layer_of={f"layer.{i}": i for i in range(self._all_layers)},
            regions=tuple(
                Region(
                    name=f"layer.{i}",
                    layer=i,
                    base_addr=(i + 1) * size,
                    block_bytes=BLOCK_BYTES,
                    stride_bytes=BLOCK_BYTES,
                    num_blocks=blocks,
                    drafter="eagle" if i in drafts else "",
                )
                for i in range(self._all_layers)
            ),
            num_blocks=blocks,
            block_tokens=BLOCK_TOKENS,
        )

    def say(self, body: Body, receiver: int = 11) -> None:
        """The decode rank sends a message."""
        self.worker.on_payload(PEER, encode(Message(22, receiver, next(self._sequence), body)))

    def reserve(self) -> None:
        """The decode rank has allocated blocks."""
        scenario, grid = self._scenario, Grid(self._scenario.tp, 1)
        for answer in range(scenario.answers):
            self.say(
                Reserve(
                    transfer_id=flow_id(f"t{answer}", grid, grid, self._index, self._index),
                    epoch=1,
                    engine=f"d:{self._index + 1}",
                    tokens=scenario.tokens,
                    from_token=0,
                    blocks=[list(range(1, scenario.tokens // BLOCK_TOKENS + 1))],
                    prompt_hash=b"prompt",
                )
            )

    def compute(self) -> None:
        """The model thread: launch every chunk, each behind the other, as async scheduling lets it."""
        self.device.enter()
        scenario, begun = self._scenario, self._host.now()
        prompt = Prompt(scenario.tokens, scenario.tokens // BLOCK_TOKENS, b"prompt", scenario.cached_tokens)
        grid = Grid(scenario.tp, 1)
        for chunk in range(scenario.chunks):
            if scenario.void_before_chunk and chunk == scenario.void_before_chunk:
                self.worker.void(PrefillStep(voids=[("p", "preempted")]))
                return
            first, stop = (scenario.tokens * at // scenario.chunks // BLOCK_TOKENS for at in (chunk, chunk + 1))
            started = [StartedPrompt("t0", "p", prompt, "", Grids(grid, grid))] if chunk == 0 else []
            progress = [Progress("p", [list(range(first + 1, stop + 1))], stop)]
            if chunk == scenario.chunks - 1:
                cached = prompt._replace(cached_tokens=scenario.tokens)
                for answer in range(1, scenario.answers):
                    started.append(StartedPrompt(f"t{answer}", f"p{answer}", cached, "", Grids(grid, grid)))
                    progress.append(Progress(f"p{answer}", [list(range(1, stop + 1))], stop))
            step = PrefillStep(started=started, progress=progress)
            self.worker.begin_step(step)
            for layer in range(self._all_layers):
                self._launch(layer)
                self.layers[layer].written.append(self._stream.end - begun)
                if layer < scenario.layers:
                    self.forward_end = self._stream.end - begun
            self.worker.end_step()
            self._stay_near(chunk)

    def _launch(self, layer: int) -> None:
        """One layer: its KV is written before its attention; a drafter's layers fire the same hooks."""
        scenario = self._scenario
        share = 1 / (scenario.layers * scenario.chunks)
        slower = 1 + 0.03 * self._index  # ranks are not equally fast
        self._host.sleep(scenario.launch_s * share)
        self._stream.launch(cost_s=scenario.compute_s * share * slower)
        if layer < scenario.layers:
            self.worker.attention_begins(f"layer.{layer}")
            self.worker.kv_issued(f"layer.{layer}")

    def _stay_near(self, chunk: int) -> None:
        """As vLLM does, schedule no further than one step ahead of the one that runs."""
        if chunk:
            self._ends[-1].synchronize()
        self._ends = [self._stream.record_event()]

    _ends: list[Any]

    def result(self, begun: float) -> RankResult:
        for at, layers in self.link.submitted:
            for layer in layers:
                self.layers[layer].left.append(at - begun)
        recent = self.worker.snapshot()["recent"]
        return RankResult(
            layers=self.layers,
            targets=self._scenario.layers,
            forward_end=self.forward_end,
            transfer_s=self._scenario.transfer_s,
            outcome=recent[0] if recent else {},
            link=self.link,
            waits=dict(self.device.waits),
            strays=dict(self.device.strays),
        )


@contextmanager
def prefill_node(scenario: Scenario) -> Iterator[tuple[VirtualHost, list[LateRank]]]:
    """Start every rank of a node; the decode ranks have greeted."""
    with (
        tempfile.TemporaryDirectory() as folder,
        VirtualHost(wake_s=20e-6) as host,
        host.driving(*MODULES),
        patch.object(prefill, "ControlLoop", _Loop),
    ):
        ranks = [LateRank(host, scenario, index, Path(folder)) for index in range(scenario.tp)]
        yield host, ranks
        for rank in ranks:
            rank.worker.stop()


def run(scenario: Scenario, patience_s: float = 3.0) -> list[RankResult]:
    """Run a scenario to its end, or for so many virtual seconds; return what happened, rank by rank."""
    with prefill_node(scenario) as (host, ranks):
        begun = host.now()
        for rank in ranks:
            if not scenario.reserved_s:
                rank.reserve()
            host.thread(rank.compute, f"model-{rank.device.index}").start()
        if scenario.reserved_s:
            host.thread(lambda: reserve_late(host, scenario, ranks), "events").start()
        while host.now() < begun + patience_s and not all(rank.worker.snapshot()["recent"] for rank in ranks):
            host.sleep(0.01)
        host.sleep(0.05)  # what leaves after the end leaves too late
        return [rank.result(begun) for rank in ranks]


def reserve_late(host: VirtualHost, scenario: Scenario, ranks: Sequence[LateRank]) -> None:
    """The decode ranks allocate blocks while the node computes."""
    host.sleep(scenario.reserved_s)
    for rank in ranks:
        rank.reserve()
