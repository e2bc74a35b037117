"""Workers with one precaution missing. The schedules must find each of them out."""

from dataclasses import replace
from typing import NamedTuple

from baton.kv_connector.handoff.metadata import Progress
from baton.kv_connector.worker_side.sync import Handover, ModelStream
from tests.support.async_schedules.traffic import Step, Traffic
from tests.support.async_schedules.world import Order, Plan, World
from tests.support.ranks import LAYERS


def without_event(stream: ModelStream) -> ModelStream:
    """The sender has nothing to wait for."""
    return replace(stream, record=lambda: None)


def without_synchronisation(stream: ModelStream) -> ModelStream:
    """The model thread does not wait."""
    return replace(stream, synchronize=lambda: None)


def with_wrong_attribute(stream: ModelStream) -> ModelStream:
    """The backend is believed to write the KV before its attention, which it does not."""
    return replace(stream, attention_writes_kv=False)


class TrustsHits(World):
    """Blocks that another prompt fills are handed over as soon as the hit is scheduled (E5)."""

    def _begin(self, step: Step) -> None:
        super()._begin(step)
        for request, blocks in step.hits.items():
            self.prefill._sender.hand(Handover([Progress(request, [], blocks)], range(LAYERS), None))


class PushesPartialBlocks(World):
    """A block that a chunk has begun counts as complete."""

    def _begin(self, step: Step) -> None:
        blocks = {f"p-{prompt.name}": len(prompt.blocks) for prompt in self.traffic.prompts.values()}
        step.told.progress = [told._replace(ready_blocks=blocks[told.request_id]) for told in step.told.progress]
        super()._begin(step)


class KeepsVoided(World):
    """A prompt whose blocks were taken away goes on (E7)."""

    def _forward(self, step: Step) -> None:
        step.told.voids.clear()
        super()._forward(step)


class Crowded(World):
    """Blocks change hands in the very step in which they are taken away. No mutant by itself."""

    def _make_traffic(self) -> Traffic:
        return Traffic(self.chance, prompts=4, crowded=True)


class Mutant(NamedTuple):
    name: str
    plan: Plan
    world: type[World] = World


MUTANTS = [
    Mutant("event: the event is not waited for", Plan(layer_sync="event", break_stream=without_event)),
    Mutant("forward: no event", Plan(layer_sync="forward", break_stream=without_event)),
    Mutant("stream: not synchronised", Plan(layer_sync="stream", break_stream=without_synchronisation)),
    Mutant(
        "stream: not synchronised, KV written by the attention",
        Plan(layer_sync="stream", attention_writes_kv=True, break_stream=without_synchronisation),
    ),
    Mutant(
        "stream: the attribute is not heeded",
        Plan(layer_sync="stream", attention_writes_kv=True, break_stream=with_wrong_attribute),
    ),
    Mutant(
        "event: the attribute is not heeded",
        Plan(layer_sync="event", attention_writes_kv=True, break_stream=with_wrong_attribute),
    ),
    Mutant("hits are trusted", Plan(layer_sync="event"), TrustsHits),
    Mutant("partial blocks are pushed", Plan(layer_sync="event"), PushesPartialBlocks),
    Mutant("voided prompts go on", Plan(layer_sync="event"), KeepsVoided),
    *(
        Mutant(
            f"{layer_sync}: the V2 runner voids after zeroing",
            Plan(layer_sync=layer_sync, order=Order.V2_ALONE),
            Crowded,
        )
        for layer_sync in ("event", "stream", "forward")
    ),
]
