"""States of recurrent layers on late devices, one for each of P's ranks: divided among ranks, cached, and of prompts that start again.

Each state is computed from the one before it, as a recurrent layer does, and so one that is copied, zeroed or written over too early
spoils all that follow.
"""

from collections import Counter
from collections.abc import Callable

import pytest

from baton.kv_connector.handoff.fan_out import FanOut
from baton.kv_connector.scheduler_side.prefill import PrefillScheduler
from baton.kv_connector.worker_side.sync import LayerSync, StreamSync
from tests.support.async_schedules.group_world import LAYOUTS, RANKS, GroupWorld, plan_of

SCHEDULES = 40
STATES = RANKS | {name: LAYOUTS[name] for name in ("Mamba2, cached", "Falcon-H1, cached")}


@pytest.mark.parametrize("name", STATES)
def test_the_state_that_arrives_is_the_one_after_all_tokens_but_the_last(name: str) -> None:
    """Under any schedule of the ranks' devices, senders, links and messages; D's ranks have their parts, and all of one prompt."""
    seen, missing = (
        Counter[str](),
        {"preempted"} | ({"hit on P", "restarted with a hit"} if STATES[name].caches_states else set()),
    )
    for seed in range(10 * SCHEDULES):
        world = GroupWorld(STATES[name], plan_of(seed), seed)
        assert not (problem := world.run()), f"seed {seed}: {problem}"
        seen += world.traffic.seen
        missing -= seen.keys()
        if seed + 1 >= SCHEDULES and not missing:
            break
    assert not missing


def without_waiting_for_the_device(patch: pytest.MonkeyPatch) -> None:
    """Layers that have been issued count as written (I1)."""
    for policy in (LayerSync, StreamSync):
        patch.setattr(policy, "_ready", lambda _: None)


def with_states_at_the_first_hook(patch: pytest.MonkeyPatch) -> None:
    """Recurrent layers, which have no hooks, are handed over with the first layer that has one (I1)."""

    def issue(self: LayerSync, layer: int) -> None:
        if layer in self._open:
            self._issued += sorted(self._open)
            self._open.clear()

    patch.setattr(LayerSync, "_issue", issue)


def without_holding(patch: pytest.MonkeyPatch) -> None:
    """A prompt that has ended gives its blocks back at once, and others compute in them (I2)."""
    hold = FanOut.hold

    def hold_and_release(self: FanOut, request_id: str, now: float) -> None:
        hold(self, request_id, now)
        self.released.append(request_id)

    patch.setattr(FanOut, "hold", hold_and_release)


def without_voids(patch: pytest.MonkeyPatch) -> None:
    """A prompt that is preempted goes on where it was, in other blocks (I2)."""
    patch.setattr(PrefillScheduler, "_void", lambda *_: None)


@pytest.mark.parametrize(
    ("mutant", "name"),
    [
        *((without_waiting_for_the_device, name) for name in STATES),
        (with_states_at_the_first_hook, "Qwen3-Next, TP 2 to 1"),
        (with_states_at_the_first_hook, "Falcon-H1, cached"),
        (without_holding, "Mamba2, TP 1 to 2"),
        (without_holding, "Mamba2, cached"),
        (without_voids, "Mamba2, TP 1 to 2"),
        (without_voids, "Falcon-H1, cached"),
    ],
    ids=lambda given: getattr(given, "__name__", given),
)
def test_a_missing_precaution_is_found_out(
    monkeypatch: pytest.MonkeyPatch, mutant: Callable[[pytest.MonkeyPatch], None], name: str
) -> None:
    """Without it D counts a state as loaded that P's layers never left for that prompt."""
    mutant(monkeypatch)

    problems = (GroupWorld(STATES[name], plan_of(seed), seed).run() for seed in range(10 * SCHEDULES))
    assert any("found" in problem for problem in problems)
