"""Random schedules of two nodes on late devices: what D counts as loaded is what P's kernels wrote for that prompt (I1, I2, I3).

Models of every kind of KV cache: windows, groups, recurrent layers with and without a prefix cache, divided among ranks. Each state
is computed from the one before it, as a recurrent layer does, and so one that is copied, zeroed or written over too early spoils
all that follow. `SCHEDULES=1000` tries that many of each.
"""

import os
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest

from baton.kv_connector.handoff import producer, pushing
from baton.kv_connector.handoff.fan_out import FanOut
from baton.kv_connector.handoff.metadata import PrefillStep
from baton.kv_connector.handoff.outgoing import Progress
from baton.kv_connector.layout import groups
from baton.kv_connector.scheduler_side import block_pins, decode, prefill
from baton.kv_connector.worker_side.prefill import PrefillWorker
from baton.kv_connector.worker_side.sync import Handover, LayerSync, ModelStream, StreamSync
from tests.support.async_schedules import layouts
from tests.support.async_schedules.layouts import LAYOUTS
from tests.support.async_schedules.world import Order, World, plan_of
from tests.support.ranks import BLOCK_TOKENS

SCHEDULES = int(os.environ.get("SCHEDULES", "48"))


@pytest.mark.parametrize("name", LAYOUTS)
def test_what_the_last_token_reads_is_what_the_kernels_wrote(name: str) -> None:
    """Prompts of twelve blocks in chunks of four, blocks recycled within a prompt, prefix hits on either node, preemptions."""
    seen, waits, missing = Counter[str](), Counter[str](), to_be_seen(name)
    enough = SCHEDULES * (4 if name == "Llama" else 1)  # a hook that comes too early shows in few of them
    for seed in range(10 * enough):
        plan = plan_of(seed)
        world = World(LAYOUTS[name], plan, seed)
        assert not (problem := world.run()), f"seed {seed}: {problem}"
        seen += world.prefill_side.seen + world.decode_side.seen
        waits[plan.layer_sync] += world.waits
        missing -= seen.keys()
        if seed + 1 >= enough and not missing:
            break
    assert not missing
    assert {policy: waits[policy] > 0 for policy in waits} == {"event": True, "stream": False, "forward": True}


def to_be_seen(name: str) -> set[str]:
    """What schedules of a layout must have brought up for it to count as tried."""
    layout, always = LAYOUTS[name], {"preempted", "reserved between layers"}
    if not layout.has_cache:
        return always
    if layout.caches_states:
        return always | {"restarted with a hit", "hit on P", "state cached on D"}
    always |= {"hit on P", "hit on D"}
    return always | ({"freed at the end", "recycled within a prompt"} if any(layout.windows) else set())


def without_waiting_for_the_device(patch: pytest.MonkeyPatch) -> None:
    """Layers that have been issued count as written (I1)."""
    for policy in (LayerSync, StreamSync):
        patch.setattr(policy, "_ready", lambda _: None)


def without_asking_the_attention(patch: pytest.MonkeyPatch) -> None:
    """Every backend is believed to write the KV before its attention (I1)."""
    init = LayerSync.__init__

    def believe(self: LayerSync, layers: int, hand: Callable[[Handover], None], stream: ModelStream) -> None:
        init(self, layers, hand, replace(stream, attention_writes_kv=False))

    patch.setattr(LayerSync, "__init__", believe)


def with_states_at_the_first_hook(patch: pytest.MonkeyPatch) -> None:
    """Recurrent layers, which have no hooks, are handed over with the first layer that has one (I1)."""

    def issue(self: LayerSync, layer: int) -> None:
        if layer in self._open:
            self._issued += sorted(self._open)
            self._open.clear()

    patch.setattr(LayerSync, "_issue", issue)


def with_hits_at_once(patch: pytest.MonkeyPatch) -> None:
    """Blocks that another prompt fills are handed over as soon as the hit is scheduled (E5)."""
    begin_step = PrefillWorker.begin_step

    def begin(self: PrefillWorker, step: PrefillStep) -> None:
        begin_step(self, step)
        hits = [
            Progress(started.request_id, [], started.prompt.cached_tokens // BLOCK_TOKENS) for started in step.started
        ]
        self._sender.hand(Handover(hits, range(LAYOUTS["Llama"].num_layers), None))

    patch.setattr(PrefillWorker, "begin_step", begin)


def without_voids(patch: pytest.MonkeyPatch) -> None:
    """A prompt that is preempted goes on where it was, in other blocks (I2, E7)."""
    patch.setattr(prefill.PrefillScheduler, "_void", lambda *_: None)


def without_holding(patch: pytest.MonkeyPatch) -> None:
    """A prompt that has ended gives its blocks back at once, and others compute in them (I2)."""
    hold = FanOut.hold

    def hold_and_release(self: FanOut, request_id: str, now: float) -> None:
        hold(self, request_id, now)
        self.released.append(request_id)

    patch.setattr(FanOut, "hold", hold_and_release)


def without_pins(patch: pytest.MonkeyPatch) -> None:
    """P trusts vLLM to keep a finished prompt's blocks (I2)."""
    patch.setattr(block_pins.BlockTables, "pin", lambda *_: None)


def with_the_whole_prompt(patch: pytest.MonkeyPatch) -> None:
    """D asks for the last token too, and vLLM allocates for the token after it."""
    patch.setattr(decode, "have_windows", lambda _: False)


def without_groups(patch: pytest.MonkeyPatch) -> None:
    """P takes every layer's blocks from the first group's table."""
    patch.setattr(pushing.TransferLayout, "group_of", lambda *_: pushing.ONLY)


def with_the_state_of_the_whole_prompt(patch: pytest.MonkeyPatch) -> None:
    """P computes the last token too."""
    patch.setattr(prefill, "shorten", lambda _: ())


def with_the_state_of_any_chunk(patch: pytest.MonkeyPatch) -> None:
    """A state stands where the prompt begins, and so is ready when its first block is."""
    patch.setattr(groups.Group, "place_of_first", lambda *_: 0)
    patch.setattr(producer, "first_read_block", lambda *_: 0)


def with_the_state_after_the_drafts(patch: pytest.MonkeyPatch) -> None:
    """The last block of a state's table counts, not the first: vLLM computes drafted tokens in it."""
    spread = groups.Group.spread
    patch.setattr(
        groups.Group,
        "spread",
        lambda self, blocks, *rest: spread(self, blocks[-1:] if self.is_single else blocks, *rest),
    )


def with_a_single_state(patch: pytest.MonkeyPatch) -> None:
    """States in the prefix cache are placed as one that is the only block of its table."""
    patch.setattr(layouts, "CACHED_STATES", groups.STATE)


@pytest.mark.parametrize(
    ("mutant", "name", "policy"),
    [
        *((without_waiting_for_the_device, "Llama", policy) for policy in ("event", "stream", "forward")),
        (without_waiting_for_the_device, "Mamba2, TP 1 to 2", ""),
        (without_waiting_for_the_device, "Falcon-H1, cached", ""),
        (without_asking_the_attention, "Llama", "event"),
        (without_asking_the_attention, "Llama", "stream"),
        (with_states_at_the_first_hook, "Qwen3-Next, TP 2 to 1", ""),
        (with_states_at_the_first_hook, "Falcon-H1, cached", ""),
        (with_hits_at_once, "Llama", ""),
        (without_voids, "Llama", ""),
        (without_voids, "Mamba2, TP 1 to 2", ""),
        (without_voids, "Falcon-H1, cached", ""),
        (without_holding, "Llama", ""),
        (without_holding, "Mamba2, cached, TP 2 to 1", ""),
        (without_pins, "Gemma3", ""),
        (without_pins, "Llama 4", ""),
        (with_the_whole_prompt, "Mistral", ""),
        (without_groups, "GPT-OSS", ""),
        (without_groups, "Qwen3-Next, TP 2 to 1", ""),
        (with_the_state_of_the_whole_prompt, "Mamba2", ""),
        (with_the_state_of_the_whole_prompt, "Falcon-H1, cached", ""),
        (with_the_state_of_any_chunk, "Qwen3-Next, TP 2 to 1", ""),
        (with_the_state_after_the_drafts, "Qwen3-Next, drafts, TP 1 to 2", ""),
        (with_a_single_state, "Qwen3-Next, cached, TP 2 to 2", ""),
    ],
    ids=lambda given: getattr(given, "__name__", given),
)
def test_a_missing_precaution_is_found_out(
    monkeypatch: pytest.MonkeyPatch, mutant: Callable[[pytest.MonkeyPatch], None], name: str, policy: str
) -> None:
    """Without it D reads what P's kernels never wrote for that prompt, or nothing arrives."""
    mutant(monkeypatch)
    seeds = (seed for seed in range(10 * SCHEDULES) if plan_of(seed).layer_sync == policy or not policy)

    assert any(World(LAYOUTS[name], plan_of(seed), seed).run() for seed in seeds)


def test_in_the_v2_order_without_our_workers_call_zeroed_blocks_are_committed() -> None:
    """The mutant of I2: a pool so small that a preempted prompt's blocks are given away, and zeroed, in the same step."""
    plans = (replace(plan_of(seed), order=Order.V2_ALONE) for seed in range(10 * SCHEDULES))

    assert any("found" in World(LAYOUTS["Llama"], plan, seed).run() for seed, plan in enumerate(plans))
