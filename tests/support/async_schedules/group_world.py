"""Random schedules, as in `world.py`, of models with windows, several KV cache groups and recurrent layers."""

import random
from functools import partial
from typing import Any

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
    GroupMemory,
    Layout,
    content,
    state,
)
from tests.support.async_schedules.world import Order, Plan, World

LAYOUTS = {
    "Gemma3": GEMMA3,
    "Gemma 4": GEMMA4,
    "GPT-OSS": GPT_OSS,
    "Llama 4": LLAMA4,
    "Mistral": MISTRAL,
    "Mamba2": MAMBA2,
    "Qwen3-Next": QWEN3_NEXT,
    "Mamba2, cached": MAMBA2_CACHED,
    "Falcon-H1, cached": FALCON_H1_CACHED,
    "Qwen3-Next, cached": QWEN3_NEXT_CACHED,
}


class GroupWorld(World):
    """P and D with vLLM's own block managers."""

    def __init__(self, layout: Layout, plan: Plan, seed: int) -> None:
        self.layout = layout
        super().__init__(plan, seed)
        self._hooked = [hooked and not layout.is_state(layer) for layer, hooked in enumerate(self._hooked)]

    def _make_memory(self) -> GroupMemory:
        return GroupMemory(self.layout)

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

    def _zero(self, step: Step) -> None:  # type: ignore[override]  # steps of another kind
        """All that a block holds, whichever group it is given to: the first layers of all groups lie in one buffer."""
        for block in step.given:
            for layer in range(0, self.layout.num_layers, len(self.layout.windows)):
                self._stream.launch(partial(self.source.write, layer, block, 0, bytes(self.layout.stride_bytes)))

    def _launch(self, step: Step, layer: int) -> None:  # type: ignore[override]  # steps of another kind
        group = self.layout.group_of(layer)
        for writes in step.writes:
            if mine := [write for write in writes if write.group == group]:
                self._stream.launch(partial(self._write, layer, mine))

    def _write(self, layer: int, writes: list[Write]) -> None:  # type: ignore[override]  # likewise
        for _, block, place, tokens in writes:
            if self.layout.is_state(layer):
                self.source.write(layer, block, 0, state(tokens, layer))
                continue
            text = b"".join(content(token, layer, place + i) for i, token in enumerate(tokens))
            self.source.write(layer, block, place, text)


def plan_of(seed: int) -> Plan:
    """Take turns between the policies, and between the orders of hooks."""
    chance = random.Random(seed)
    return Plan(
        layer_sync=chance.choice(("event", "stream", "forward")),
        attention_writes_kv=chance.random() < 0.5,
        order=chance.choice((Order.V1, Order.V2)),
    )
