"""One random schedule: the real `PrefillWorker` and `DecodeWorker` on a late device, a slow link and slow messages.

Nothing runs by itself. One thread makes the model's forward passes, and between any two of its operations whatever else
there is may get a turn, by a seeded draw: the device, the sender, the link, the control messages, D's scheduler. The same
seed gives the same schedule. A run ends when all prompts have; it is sound if everything that D counts as loaded is what
P's kernels finally wrote for that prompt (I1, I2), stays so (I3), and nothing else was left behind.
"""

import ctypes
import random
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any
from unittest.mock import patch

from baton.contracts.configuration.schema import TransferConfig
from baton.contracts.kv_transfer import Role
from baton.kv_connector.config import ConnectorConfig
from baton.kv_connector.protocol.messages import Rank
from baton.kv_connector.worker_side import decode, prefill
from baton.kv_connector.worker_side.divisions import divided_among
from baton.kv_connector.worker_side.rank_descriptor import RankDescriptor
from baton.kv_connector.worker_side.sync import ModelStream
from tests.support.async_schedules.decode_side import DecodeSide
from tests.support.async_schedules.traffic import TOKEN_BYTES, Step, Traffic, Write, content
from tests.support.async_schedules.wire import Wire
from tests.support.described import fingerprint
from tests.support.fake_device import FakeDevice, Run, Stream
from tests.support.memory_engine import MemoryFabric
from tests.support.ranks import SECRET, Memory

PATIENCE = 400  # steps without new prompts until a schedule counts as stuck
LONG_S = 3600.0  # no clock takes part


class Order(Enum):
    """In which order a step's hooks and its device's work are issued."""

    V1 = auto()  # preemptions, zeroing, forward pass, end
    V2 = auto()  # our worker's call, zeroing, preemptions, forward pass, end of it, sampling, end again
    V2_ALONE = auto()  # the same without our worker's call: vLLM's own order


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What all schedules of a run have in common."""

    layer_sync: str
    order: Order = Order.V1
    attention_writes_kv: bool = False  # as the model's attention backend really does
    break_stream: Callable[[ModelStream], ModelStream] = lambda stream: stream


class World:
    """P, D and everything between them."""

    def __init__(self, plan: Plan, seed: int) -> None:
        self._plan = plan
        self.chance = random.Random(seed)
        self.source, self.target = self._make_memories()
        self._layers = range(self.source.caches.num_layers)
        self.traffic = self._make_traffic()
        self._devices = [FakeDevice(seed + tp, Run.ON_WAIT) for tp in range(len(self._ranks_of(self.source)))]
        self._streams = [device.stream() for device in self._devices]
        self._stream = self._streams[0]
        self.waits = 0  # of the waiters, for their devices
        self._fabric = MemoryFabric(automatic=self.chance.random() < 0.5)
        self._wire = Wire(self.chance)
        self._hooked = [self.chance.random() < 0.85 for _ in self._layers]
        self._weights = [self.chance.choice((0.2, 1, 4)) for _ in range(7)]
        with (
            patch.object(prefill, "ControlLoop", self._wire.loop),
            patch.object(decode, "ControlLoop", self._wire.loop),
        ):
            self._prefills, self._decodes = self._make_workers()
        self.prefill, self._decode = self._make_nodes()
        at_once = self.chance.choice((1, 1, 2, len(self._layers)))  # as if for links of several speeds
        for worker in self._prefills:
            worker._sender.layers_at_once = lambda blocks: at_once  # type: ignore[method-assign]
        for receiver in self._decodes:
            receiver._engines._make(0)
        self.decode_side = self._make_decode_side()
        self._turns: list[Callable[[], object]] = [
            self._turn_of_device,
            self._turn_of_sender,
            self._turn_of_waiter,
            lambda: self._fabric.land(self.chance.randint(1, 8)),
            partial(self._wire.deliver, to_prefill=True),
            partial(self._wire.deliver, to_prefill=False),
            self.decode_side.act,
        ]

    def _make_memories(self) -> tuple[Any, Any]:
        return Memory(), Memory()

    def _ranks_of(self, memory: Any) -> list[Any]:
        """One node's memories, rank by rank."""
        return [memory]

    def _make_nodes(self) -> tuple[Any, Any]:
        """All ranks of each node in one."""
        return self._prefills[0], self._decodes[0]

    def _make_traffic(self) -> Any:
        return Traffic(self.chance, prompts=self.chance.randint(1, 4))

    def _make_decode_side(self) -> Any:
        return DecodeSide(self.chance, self._decode, self.target, list(self.traffic.prompts.values()))

    def run(self) -> str:
        """Run to the end; return what was wrong, or ""."""
        problem: str
        for _ in range(self.chance.choice((0, 0, 10, 40))):  # how early D is
            self.decode_side.act()
            self._wire.deliver(to_prefill=self.chance.random() < 0.5)
        for _ in range(PATIENCE):
            self._forward(self.traffic.step())
            self.traffic.release(self.prefill.take_released())
            if self.decode_side.problem or not (self.traffic.busy or self.decode_side.unfinished()):
                break
        self._come_to_rest()
        problem = self.decode_side.check()
        if problem:
            return problem
        return "; ".join(self.decode_side.unfinished())

    # --- the model thread ---

    def _forward(self, step: Step) -> None:
        self._take_away(step)
        self._others()
        self._begin(step)
        self._others()
        reserved = self.decode_side.reserved
        for layer in self._layers:
            self._layer(step, layer)
        if step.writes and self.decode_side.reserved > reserved:
            self.traffic.seen["reserved between layers"] += 1
        if self._plan.order is not Order.V1:
            self.prefill.finish_forward()
            self._others()  # while vLLM samples
        self.prefill.end_step()
        self._others()

    def _take_away(self, step: Step) -> None:
        """Tell the worker what it no longer holds, and zero what the step's prompts were given."""
        if self._plan.order is not Order.V2_ALONE:
            self.prefill.void(step.told)
        if self._plan.order is not Order.V1:
            self._zero(step)
            for _ in range(60 if step.told.voids else 1):  # vLLM prepares the step's inputs
                self._others()
            self.prefill.void(step.told)

    def _zero(self, step: Step) -> None:
        for write in chain.from_iterable(step.writes):
            if write.first == 0:  # nothing of the block was written before
                for layer in self._layers:
                    self._stream.launch(partial(self.source.write, layer, write.block, "zero"))

    def _begin(self, step: Step) -> None:
        self.prefill.begin_step(step.told)

    def _layer(self, step: Step, layer: int) -> None:
        """One layer's kernels and hooks, in the order in which vLLM issues them."""
        self._others()
        if not self._plan.attention_writes_kv:
            self._launch(step, layer)
        if self._hooked[layer]:
            self.prefill.attention_begins(f"layer.{layer}")
        self._others()
        if self._plan.attention_writes_kv:
            self._launch(step, layer)
        if self._hooked[layer]:
            self.prefill.layer_written(f"layer.{layer}")
            if self.chance.random() < 0.1:  # an alias of it
                self.prefill.attention_begins(f"layer.{layer}")
                self.prefill.layer_written(f"layer.{layer}")

    def _launch(self, step: Step, layer: int) -> None:
        for writes in step.writes:
            self._stream.launch(partial(self._write, layer, writes))

    def _write(self, layer: int, writes: list[Write]) -> None:
        for block, text, first, stop in writes:
            region = self.source.caches.regions[layer]
            address = region.base_addr + block * region.stride_bytes + first * TOKEN_BYTES
            ctypes.memmove(address, content(text, layer, first, stop), (stop - first) * TOKEN_BYTES)

    # --- everything else ---

    def _others(self) -> None:
        for turn in self.chance.choices(self._turns, self._weights, k=self.chance.randint(0, 2)):
            turn()

    def _turn_of_device(self) -> None:
        self._devices[self._any_rank()].advance()

    def _turn_of_sender(self) -> None:
        """What a sender's thread does between two sleeps."""
        rank = self._any_rank()
        sender, device = self._prefills[rank]._sender, self._devices[rank]
        waits = device.waits.total()
        sender.wake()
        sender._take_in(sender._wait())
        sender._look_after()
        sender._submit()
        assert device.waits.total() == waits, "the sender has waited for the device"

    def _turn_of_waiter(self) -> None:
        """What a waiter's thread does when some layers have been issued: until they are written."""
        self.waits += self._prefills[self._any_rank()]._sender._waiter.wait_for_next(block=False)

    def _any_rank(self) -> int:
        """One of P's."""
        return self.chance.randrange(len(self._prefills)) if len(self._prefills) > 1 else 0

    def _come_to_rest(self) -> None:
        """Nothing more is computed: let everything arrive that is still on its way."""
        for _ in range(20 * len(self._prefills) * len(self._decodes)):
            for device in self._devices:
                device.synchronize()
            for turn in self._turns:
                turn()
            self._fabric.land_all()

    def _make_workers(self) -> tuple[list[prefill.PrefillWorker], list[decode.DecodeWorker]]:
        config = ConnectorConfig(
            runtime_dir=Path(),
            secret_file=Path(),
            weights="w",
            transfer=TransferConfig(
                layer_sync=self._plan.layer_sync,  # type: ignore[arg-type]  # the schema names the choices
                push_max_bytes=self.source.caches.layer_block_bytes * self.chance.randint(1, 8),
                peer_timeout_s=LONG_S,
                transfer_timeout_s=LONG_S,
                orphan_timeout_s=LONG_S,
                receive_engines=1,
            ),
        )
        common: dict[str, Any] = {"config": config, "secret": SECRET}
        return (
            [
                prefill.PrefillWorker(
                    introduction=introduction,
                    engines=self._fabric.factory("p"),
                    incarnation=11 + introduction.index,
                    digests=memory.digests,
                    stream=self._model_stream(stream),
                    **common,
                )
                for introduction, memory, stream in zip(
                    self._introductions("P", self.source), self._ranks_of(self.source), self._streams, strict=True
                )
            ],
            [
                decode.DecodeWorker(
                    introduction=introduction,
                    engines=self._fabric.factory("d"),
                    incarnation=22 + introduction.index,
                    digests=memory.digests,
                    record=lambda: None,
                    **common,
                )
                for introduction, memory in zip(
                    self._introductions("D", self.target), self._ranks_of(self.target), strict=True
                )
            ],
        )

    def _introductions(self, node: str, memory: Any) -> list[RankDescriptor]:
        role: Role = "prefill" if node == "P" else "decode"
        known_as, ranks = fingerprint(memory.caches.block_tokens), self._ranks_of(memory)
        return [
            RankDescriptor(
                node,
                role,
                Rank(tp=tp, tp_size=len(ranks)),
                known_as,
                rank.caches,
                divided_among(max(region.total_heads or 1 for region in rank.caches.regions), rank.caches.regions),
            )
            for tp, rank in enumerate(ranks)
        ]

    def _model_stream(self, stream: Stream) -> ModelStream:
        return self._plan.break_stream(
            ModelStream(
                device_type="fake",
                record=stream.record_event,
                synchronize=stream.synchronize,
                attention_writes_kv=self._plan.attention_writes_kv,
            )
        )


PLANS = {
    f"{layer_sync}, KV written {'by' if by else 'before'} the attention{', V2' if order is Order.V2 else ''}": Plan(
        layer_sync=layer_sync, attention_writes_kv=by, order=order
    )
    for layer_sync in ("event", "stream", "forward")
    for by in (False, True)
    for order in (Order.V1, Order.V2)
}
