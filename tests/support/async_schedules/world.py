"""One random schedule: the real `PrefillWorker`s and `DecodeWorker`s of two nodes on late devices, a slow link and slow messages.

Nothing runs by itself. One thread makes the model's forward passes, and between any two of its operations whatever else
there is may get a turn, by a seeded draw: the devices, the senders, the link, the control messages, D's scheduler. The same
seed gives the same schedule. A run ends when all prompts have; it is sound if everything that D counts as loaded is what
P's kernels finally wrote for that prompt (I1, I2), stays so (I3), and nothing else was left behind, on either node's pool.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from itertools import product
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
from tests.support.async_schedules.all_ranks import DecodeRanks, PrefillRanks
from tests.support.async_schedules.decode_side import DecodeSide
from tests.support.async_schedules.layouts import Layout
from tests.support.async_schedules.memory import NodeMemory, RankMemory, content, state
from tests.support.async_schedules.prefill_side import PrefillSide, Step, Write
from tests.support.async_schedules.wire import Wire
from tests.support.described import fingerprint
from tests.support.fake_device import FakeDevice, Run, Stream
from tests.support.memory_engine import MemoryFabric
from tests.support.ranks import SECRET

PATIENCE = 2000  # steps until a schedule counts as stuck
LONG_S = 3600.0  # no clock takes part
LONG_PREPARATION = 200  # turns of all others, in which what is to be void may still be committed


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
    attention_writes_kv: bool = False  # as the model's attention backend does


class World:
    """P, D and everything between them."""

    def __init__(self, layout: Layout, plan: Plan, seed: int) -> None:
        self._layout = layout
        self._plan = plan
        self._chance = random.Random(seed)
        self._source, self._target = (NodeMemory(layout, grid) for grid in layout.grids)
        self._layers = range(layout.num_layers)
        self.prefill_side = PrefillSide(self._chance, layout, self._chance.randint(1, 3))
        self._devices = [FakeDevice(seed + tp, Run.ON_WAIT) for tp in range(len(self._source.ranks))]
        self._streams = [device.stream() for device in self._devices]
        self.waits = 0  # of the waiters, for their devices
        self._fabric = MemoryFabric(automatic=self._chance.random() < 0.5)
        self._wire = Wire(self._chance)
        self._hooked = [self._chance.random() < 0.85 and not layout.is_state(layer) for layer in self._layers]
        self._weights = [self._chance.choice((0.2, 1, 4)) for _ in range(7)]
        with (
            patch.object(prefill, "ControlLoop", self._wire.loop),
            patch.object(decode, "ControlLoop", self._wire.loop),
        ):
            self._prefills, self._decodes = self._make_workers()
        self._prefill, workers = PrefillRanks(self._prefills, self._others), DecodeRanks(self._decodes)
        at_once = self._chance.choice((1, 1, 2, len(self._layers)))  # as if for links of several speeds
        for worker in self._prefills:
            worker._sender.layers_at_once = lambda blocks: at_once  # type: ignore[method-assign]
        for receiver in self._decodes:
            receiver._engines._make(0)
        texts = list(self.prefill_side.prompts.values())
        self.decode_side = DecodeSide(self._chance, workers, self._target, layout, texts)
        self._turns: list[Callable[[], object]] = [
            self._turn_of_device,
            self._turn_of_sender,
            self._turn_of_waiter,
            lambda: self._fabric.land(self._chance.randint(1, 8)),
            partial(self._wire.deliver, to_prefill=True),
            partial(self._wire.deliver, to_prefill=False),
            self.decode_side.act,
        ]

    def run(self) -> str:
        """Run to the end; return what was wrong, or ""."""
        for _ in range(self._chance.choice((0, 0, 10, 40))):  # how early D is
            self.decode_side.act()
            self._wire.deliver(to_prefill=self._chance.random() < 0.5)
        for _ in range(PATIENCE):
            self._forward(self.prefill_side.step())
            self.prefill_side.release(self._prefill.take_released())
            if self.decode_side.problem or not (self.prefill_side.busy or self.decode_side.unfinished()):
                break
        self._come_to_rest()
        problems = self.decode_side.check(), "; ".join(self.decode_side.unfinished()), self.prefill_side.check()
        return next(filter(None, problems), "")

    # --- the model thread ---

    def _forward(self, step: Step) -> None:
        self._take_away(step)
        self._others()
        self._prefill.begin_step(step.told)
        self._others()
        reserved = self.decode_side.reserved
        for layer in self._layers:
            self._layer(step, layer)
        if step.writes and self.decode_side.reserved > reserved:
            self.prefill_side.seen["reserved between layers"] += 1
        if self._plan.order is not Order.V1:
            self._prefill.finish_forward()
            self._others()  # while vLLM samples
        self._prefill.end_step()
        self._others()

    def _take_away(self, step: Step) -> None:
        """Tell the worker what it no longer holds, zero what the step's prompts were given, copy the states that go on in other blocks."""
        if self._plan.order is not Order.V2_ALONE:
            self._prefill.void(step.told)
        if self._plan.order is not Order.V1:
            self._zero(step)
            for _ in range(LONG_PREPARATION if step.told.voids else 1):  # of the step's inputs
                self._others()
            self._prefill.void(step.told)
        for group, source, target in step.copied:
            for layer in self._layers:
                if self._layout.group_of(layer) == group:
                    self._issue(RankMemory.copy_state, layer, source, target)

    def _zero(self, step: Step) -> None:
        """All that a block holds, whichever group it is given to: the first layers of all groups lie in one buffer."""
        for block in step.given:
            for layer in range(0, self._layout.num_layers, len(self._layout.windows)):
                self._issue(RankMemory.fill, layer, block, bytes(self._layout.stride_bytes))

    def _layer(self, step: Step, layer: int) -> None:
        """One layer's kernels and hooks, in the order in which vLLM issues them."""
        self._others()
        if not self._plan.attention_writes_kv:
            self._launch(step, layer)
        if self._hooked[layer]:
            self._prefill.attention_begins(f"layer.{layer}")
        self._others()
        if self._plan.attention_writes_kv:
            self._launch(step, layer)
        if self._hooked[layer]:
            self._prefill.kv_issued(f"layer.{layer}")
            if self._chance.random() < 0.1:  # an alias of it
                self._prefill.attention_begins(f"layer.{layer}")
                self._prefill.kv_issued(f"layer.{layer}")

    def _launch(self, step: Step, layer: int) -> None:
        group = self._layout.group_of(layer)
        for writes in step.writes:
            if mine := [write for write in writes if write.group == group]:
                self._issue(_write_states if self._layout.is_state(layer) else _write, layer, mine)

    def _issue(self, kernel: Callable[..., None], *given: Any) -> None:
        """Have each of P's ranks run a kernel on its memory, on its device."""
        for stream, memory in zip(self._streams, self._source.ranks, strict=True):
            stream.launch(partial(kernel, memory, *given))

    # --- everything else ---

    def _others(self) -> None:
        for turn in self._chance.choices(self._turns, self._weights, k=self._chance.randint(0, 2)):
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
        return self._chance.randrange(len(self._prefills)) if len(self._prefills) > 1 else 0

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
                push_max_bytes=self._source.caches.layer_block_bytes * self._chance.randint(1, 8),
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
                    self._introductions("P", self._source), self._source.ranks, self._streams, strict=True
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
                for introduction, memory in zip(self._introductions("D", self._target), self._target.ranks, strict=True)
            ],
        )

    def _introductions(self, node: str, memory: NodeMemory) -> list[RankDescriptor]:
        role: Role = "prefill" if node == "P" else "decode"
        known_as, size = fingerprint(memory.caches.block_tokens), len(memory.ranks)
        heads = max(region.total_heads or 1 for region in memory.caches.regions)
        return [
            RankDescriptor(
                node,
                role,
                Rank(tp=tp, tp_size=size),
                known_as,
                rank.caches,
                divided_among(heads, rank.caches.regions),
            )
            for tp, rank in enumerate(memory.ranks)
        ]

    def _model_stream(self, stream: Stream) -> ModelStream:
        return ModelStream(
            device_type="fake",
            record=stream.record_event,
            synchronize=stream.synchronize,
            attention_writes_kv=self._plan.attention_writes_kv,
        )


def _write(memory: RankMemory, layer: int, writes: list[Write]) -> None:
    for _, block, place, tokens, *_ in writes:
        text = b"".join(content(token, layer, place + i) for i, token in enumerate(tokens))
        memory.write(layer, block, place, text)


def _write_states(memory: RankMemory, layer: int, writes: list[Write]) -> None:
    """As a recurrent layer does: from the state that it finds. Another than that of the tokens before spoils all that follow."""
    for _, block, _, tokens, running, before in writes:
        if before and not memory.has_state(layer, running, state(tokens[:before], layer)):
            memory.fill(layer, block, b"from another state")
        else:
            memory.write_state(layer, block, state(tokens, layer))


PLANS = [
    Plan(layer_sync=layer_sync, attention_writes_kv=by_attention, order=order)
    for layer_sync, by_attention, order in product(("event", "stream", "forward"), (False, True), (Order.V1, Order.V2))
]


def plan_of(seed: int) -> Plan:
    """Take turns between the policies, between attention that writes KV and not, and between the orders of hooks."""
    return PLANS[seed % len(PLANS)]
