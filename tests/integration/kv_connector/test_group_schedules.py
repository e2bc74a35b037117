"""Windows, groups and states on a late device: what D reads is what P's kernels wrote, whatever is recycled then."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest

from baton.kv_connector.handoff import producer, pushing
from baton.kv_connector.layout import groups
from baton.kv_connector.scheduler_side import block_pins, decode, prefill
from tests.support.async_schedules import kv_manager
from tests.support.async_schedules.group_world import LAYOUTS, GroupWorld, plan_of
from tests.support.async_schedules.world import Order

SCHEDULES = 50
MOST_SCHEDULES = 1000


@pytest.mark.parametrize("name", LAYOUTS)
def test_what_the_last_token_reads_is_what_the_kernels_wrote(name: str) -> None:
    """1,500 tokens in chunks of 512, blocks recycled within a prompt, prefix hits on either node, preemptions, both orders of hooks."""
    seen, missing = Counter[str](), to_be_seen(name)
    for seed in range(MOST_SCHEDULES):  # "hit on D" comes up in one of some hundred
        world = GroupWorld(LAYOUTS[name], plan_of(seed), seed)
        assert not (problem := world.run()), f"seed {seed}: {problem}"
        seen += world.traffic.seen + world.decode_side.seen
        missing -= seen.keys()
        if seed + 1 >= SCHEDULES and not missing:
            break
    assert not missing


def to_be_seen(name: str) -> set[str]:
    """What schedules of a layout must have brought up for it to count as tried."""
    if not LAYOUTS[name].has_cache:
        return {"preempted"}
    if LAYOUTS[name].caches_states:
        always = {"preempted", "restarted with a hit", "hit on P", "state cached on D"}
        return always | ({"hit on D"} if 0 in LAYOUTS[name].windows else set())
    always = {"hit on P", "freed at the end", "preempted"}
    if name == "Mistral":  # with one group and this pool neither comes up; the matrix has prefix hits on D
        return always
    return always | {"hit on D", "recycled within a prompt"}


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
    patch.setattr(kv_manager, "CACHED_STATES", groups.STATE)


@pytest.mark.parametrize(
    ("mutant", "name"),
    [
        (without_pins, "Gemma3"),
        (without_pins, "Llama 4"),
        (with_the_whole_prompt, "Mistral"),
        (without_groups, "GPT-OSS"),
        (with_the_state_of_the_whole_prompt, "Mamba2"),
        (with_the_state_of_any_chunk, "Qwen3-Next"),
        (without_groups, "Qwen3-Next"),
        (with_the_state_of_the_whole_prompt, "Falcon-H1, cached"),
        (with_a_single_state, "Qwen3-Next, cached"),
        (with_the_state_after_the_drafts, "Qwen3-Next, drafts"),
    ],
    ids=lambda given: getattr(given, "__name__", given),
)
def test_a_missing_precaution_is_found_out(
    monkeypatch: pytest.MonkeyPatch, mutant: Callable[[pytest.MonkeyPatch], None], name: str
) -> None:
    """Without it D reads what P's kernels never wrote for that prompt, or nothing arrives."""
    mutant(monkeypatch)

    assert any(GroupWorld(LAYOUTS[name], plan_of(seed), seed).run() for seed in range(MOST_SCHEDULES))


def test_in_the_v2_order_without_our_workers_call_zeroed_blocks_are_committed() -> None:
    """The mutant of I2: a pool so small that a preempted prompt's blocks are given away, and zeroed, in the same step."""
    name = "Qwen3-Next"
    plans = (replace(plan_of(seed), order=Order.V2_ALONE) for seed in range(MOST_SCHEDULES))

    assert any("found" in GroupWorld(LAYOUTS[name], plan, seed).run() for seed, plan in enumerate(plans))
