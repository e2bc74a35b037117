"""Random schedules, as in `world.py`, of models with windows, several KV cache groups, recurrent layers and several ranks."""

import random
from collections.abc import Callable
from functools import partial
from typing import Any

from baton.contracts.kv_transfer import SINGLE, Grid, Grids
from tests.support.async_schedules.all_ranks import DecodeRanks, PrefillRanks
from tests.support.async_schedules.group_decode_side import GroupDecodeSide
from tests.support.async_schedules.group_sides import GroupTraffic, Step, Write
from tests.support.async_schedules.kv_manager import (
    FALCON_H1_CACHED,
    GEMMA3,
    GEMMA4,
    GPT_OSS,
    LLAMA4,
    MAMBA2,
    MAMBA2_CACHED,
    MISTRAL,
    QWEN3_NEXT,
    QWEN3_NEXT_CACHED,
    QWEN3_NEXT_DRAFTS,
    GroupMemory,
    Layout,
    content,
    state,
)
from tests.support.async_schedules.rank_memory import memory_of
from tests.support.async_schedules.world import Order, Plan, World

LAYOUTS = {
    "Gemma3": GEMMA3,
    "Gemma 4": GEMMA4,
    "GPT-OSS": GPT_OSS,
    "Llama 4": LLAMA4,
    "Mistral": MISTRAL,
    "Mamba2": MAMBA2,
    "Qwen3-Next": QWEN3_NEXT,
    "Qwen3-Next, drafts": QWEN3_NEXT_DRAFTS,
    "Mamba2, cached": MAMBA2_CACHED,
    "Falcon-H1, cached": FALCON_H1_CACHED,
    "Qwen3-Next, cached": QWEN3_NEXT_CACHED,
}
RANKS = {
    "Qwen3-Next, TP 2 to 1": QWEN3_NEXT._replace(grids=Grids(Grid(2), Grid(1))),
    "Qwen3-Next, drafts, TP 1 to 2": QWEN3_NEXT_DRAFTS._replace(grids=Grids(Grid(1), Grid(2))),
    "Mamba2, TP 1 to 2": MAMBA2._replace(grids=Grids(Grid(1), Grid(2))),
    "Mamba2, cached, TP 2 to 1": MAMBA2_CACHED._replace(grids=Grids(Grid(2), Grid(1))),
    "Falcon-H1, cached, TP 1 to 2": FALCON_H1_CACHED._replace(grids=Grids(Grid(1), Grid(2))),
    "Qwen3-Next, cached, TP 2 to 2": QWEN3_NEXT_CACHED._replace(grids=Grids(Grid(2), Grid(2))),
}  # states divided among tensor-parallel ranks


class GroupWorld(World):
    """P and D with vLLM's own block managers."""

    def __init__(self, layout: Layout, plan: Plan, seed: int) -> None:
        self.layout = layout
        super().__init__(plan, seed)
        self._hooked = [hooked and not layout.is_state(layer) for layer, hooked in enumerate(self._hooked)]

    def _make_memories(self) -> tuple[Any, Any]:
        prefill, decode = self.layout.grids
        return memory_of(self.layout, prefill), memory_of(self.layout, decode)

    def _ranks_of(self, memory: Any) -> list[Any]:
        return list(memory.ranks)

    def _make_nodes(self) -> tuple[Any, Any]:
        if self.layout.grids == SINGLE:
            return super()._make_nodes()
        return PrefillRanks(self._prefills, self._others), DecodeRanks(self._decodes)

    def _make_traffic(self) -> Any:
        return GroupTraffic(self.chance, self.layout, self.chance.randint(1, 3))

    def _make_decode_side(self) -> Any:
        texts = list(self.traffic.prompts.values())
        return GroupDecodeSide(self.chance, self._decode, self.target, self.layout, texts)

    def run(self) -> str:
        """Run to the end; return what was wrong, or "". Besides, P's pool must be whole again."""
        if problem := super().run():
            return problem
        pool = self.traffic.manager.block_pool
        left = pool.num_gpu_blocks - 1 - pool.get_num_free_blocks()
        return f"{left} blocks of P have not come back" if left else ""

    def _issue(self, kernel: Callable[..., None], *given: Any) -> None:
        """Have each rank's device run a kernel on that rank's memory."""
        for stream, memory in zip(self._streams, self._ranks_of(self.source), strict=True):
            stream.launch(partial(kernel, memory, *given))

    def _take_away(self, step: Step) -> None:  # type: ignore[override]  # steps of another kind
        """Then vLLM copies the states that go on in other blocks."""
        super()._take_away(step)  # type: ignore[arg-type]  # likewise
        for group, source, target in step.copied:
            for layer in self._layers:
                if self.layout.group_of(layer) == group:
                    self._issue(_copy_state, layer, source, target)

    def _zero(self, step: Step) -> None:  # type: ignore[override]  # steps of another kind
        """All that a block holds, whichever group it is given to: the first layers of all groups lie in one buffer."""
        for block in step.given:
            for layer in range(0, self.layout.num_layers, len(self.layout.windows)):
                self._issue(_fill, layer, block, bytes(self.layout.stride_bytes))

    def _launch(self, step: Step, layer: int) -> None:  # type: ignore[override]  # steps of another kind
        group = self.layout.group_of(layer)
        for writes in step.writes:
            if mine := [write for write in writes if write.group == group]:
                self._issue(_write_states if self.layout.is_state(layer) else _write, layer, mine)


def _fill(memory: GroupMemory, layer: int, block: int, text: bytes) -> None:
    memory.fill(layer, block, text)


def _copy_state(memory: GroupMemory, layer: int, source: int, target: int) -> None:
    memory.copy_state(layer, source, target)


def _write(memory: GroupMemory, layer: int, writes: list[Write]) -> None:
    for _, block, place, tokens, *_ in writes:
        text = b"".join(content(token, layer, place + i) for i, token in enumerate(tokens))
        memory.write(layer, block, place, text)


def _write_states(memory: GroupMemory, layer: int, writes: list[Write]) -> None:
    """As a recurrent layer does: from the state that it finds. Another than that of the tokens before spoils all that follow."""
    for _, block, _, tokens, running, before in writes:
        if before and not memory.has_state(layer, running, state(tokens[:before], layer)):
            memory.fill(layer, block, b"from another state")
        else:
            memory.write_state(layer, block, state(tokens, layer))


def plan_of(seed: int) -> Plan:
    """Take turns between the policies, and between the orders of hooks."""
    chance = random.Random(seed)
    return Plan(
        layer_sync=chance.choice(("event", "stream", "forward")),
        attention_writes_kv=chance.random() < 0.5,
        order=chance.choice((Order.V1, Order.V2)),
    )
