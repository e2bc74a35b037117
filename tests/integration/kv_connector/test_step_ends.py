"""How a step of a prefill rank begins and ends, in the orders of vLLM's two runners and of vllm-ascend."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from baton.kv_connector.handoff.metadata import PrefillStep, StartedPrompt
from baton.kv_connector.handoff.outgoing import Progress, Prompt
from baton.kv_connector.worker_side.caches import Caches
from baton.kv_connector.worker_side.sync import Handover, ModelStream, make_layer_sync
from tests.support import ranks as module
from tests.support.plain_memory import plain_caches
from tests.support.ranks import LAYERS, Ranks

STREAM = ModelStream(device_type="cuda", record=lambda: None, synchronize=lambda: None)
PROGRESS = [Progress("p-a", [[1]], 1)]
STEP = PrefillStep(started=[StartedPrompt("a", "p-a", Prompt(16, 1, b"prompt a"))], progress=PROGRESS)


class Rig:
    """A rank, and the layers that it hands over."""

    def __init__(self, ranks: Ranks, layer_sync: str = "event") -> None:
        self.ranks, self.prefill = ranks, ranks.prefill
        self.handed: list[int] = []
        self.prefill._sender.layers_at_once = lambda blocks: 1  # type: ignore[method-assign]
        self.prefill._sync = make_layer_sync(layer_sync, LAYERS, self._hand, STREAM)

    def _hand(self, handover: Handover) -> None:
        self.handed += handover.layers


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    """One whose layers leave by events."""
    with Ranks(tmp_path) as ranks:
        yield Rig(ranks)


@pytest.mark.parametrize("layer_sync", ["event", "stream", "forward"])
@pytest.mark.parametrize("hooked", [0, 2, LAYERS])
def test_either_hook_ends_a_step_and_only_once(rig: Rig, layer_sync: str, hooked: int) -> None:
    """V2 calls `finish_forward` before it samples and `wait_for_save` after; V1 and older V2 the latter alone."""
    rig = Rig(rig.ranks, layer_sync)
    for ends in ([rig.prefill.finish_forward, rig.prefill.end_step], [rig.prefill.end_step, rig.prefill.end_step]):
        rig.handed.clear()
        rig.prefill.begin_step(STEP)
        for layer in range(hooked):
            rig.prefill.kv_issued(f"layer.{layer}")
        ends[0]()
        assert sorted(rig.handed) == list(range(LAYERS))
        ends[1]()
        assert len(rig.handed) == LAYERS


def test_a_drafter_s_layers_leave_when_it_has_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """V2 drafts between the two hooks."""

    def drafted(*args: Any) -> Caches:
        caches = plain_caches(*args)
        *target, last = caches.regions
        return replace(caches, regions=(*target, msgspec.structs.replace(last, drafter="eagle")))

    monkeypatch.setattr(module, "plain_caches", drafted)
    with Ranks(tmp_path) as ranks:
        rig = Rig(ranks)
        rig.prefill.begin_step(STEP)
        rig.prefill.kv_issued("layer.0")

        rig.prefill.finish_forward()
        assert rig.handed == [0]
        rig.prefill.end_step()
        assert sorted(rig.handed) == list(range(LAYERS))


def test_a_pass_that_raised_unheard_is_void_when_the_next_step_begins(rig: Rig) -> None:
    """I1: V2 calls no hook then, and the layers behind it were never written."""
    rig.ranks.watch("a")
    rig.ranks.reserve("a", 16, [7])
    rig.prefill.begin_step(STEP)
    rig.prefill.kv_issued("layer.0")

    rig.prefill.begin_step(PrefillStep())
    rig.ranks.wait_until(lambda: rig.ranks.closed == ["d-a"])

    assert rig.ranks.failed == {"d-a": "the forward pass failed"}
    assert rig.handed == [0]


def test_a_step_without_prompts_needs_no_end(rig: Rig) -> None:
    """Up to vLLM 0.30 V2 does not end one: what comes next is no failure."""
    rig.prefill.begin_step(PrefillStep())
    rig.prefill.begin_step(STEP)
    rig.prefill.finish_forward()
    rig.prefill.begin_step(PrefillStep())

    assert rig.prefill._producer.transfers == {} or all(
        not transfer.ending for transfer in rig.prefill._producer.transfers.values()
    )
    assert sorted(rig.handed) == list(range(LAYERS))


@pytest.mark.parametrize("name", ["", "layer.{}"])
def test_vllm_ascend_says_that_kv_is_written_before_attention_runs(rig: Rig, name: str) -> None:
    """Without a name it is the layer whose attention has begun. The hook behind the attention adds nothing."""
    rig.prefill.begin_step(STEP)
    for layer in range(LAYERS):
        rig.prefill.attention_begins(f"layer.{layer}")
        rig.prefill.kv_issued(name.format(layer))
        assert rig.handed == [*range(layer + 1)]
        rig.prefill.kv_issued(f"layer.{layer}")
        assert rig.handed == [*range(layer + 1)]


def test_a_nameless_hook_means_no_layer_of_a_step_before(rig: Rig) -> None:
    """I1: the last layer of the last step has begun, the one of this step has not."""
    rig.prefill.begin_step(STEP)
    rig.prefill.attention_begins(f"layer.{LAYERS - 1}")
    rig.prefill.end_step()
    rig.handed.clear()

    rig.prefill.begin_step(PrefillStep(progress=PROGRESS))
    rig.prefill.kv_issued("")
    assert rig.handed == []

    rig.prefill.attention_begins("layer.0")
    rig.prefill.kv_issued("layer.0")
    rig.prefill.kv_issued("")
    assert rig.handed == [0]
