"""I1 and I6 on a device that is late: nothing is read, and nothing written, before its kernels have run."""

import os
from collections import Counter
from functools import partial
from pathlib import Path

import pytest

from baton.kv_connector.handoff.metadata import PrefillStep, Progress, StartedPrompt
from baton.kv_connector.handoff.outgoing import Prompt
from baton.kv_connector.worker_side.sync import ModelStream, make_layer_sync
from tests.support.async_schedules.mutants import MUTANTS, Crowded, Mutant
from tests.support.async_schedules.world import PLANS, Order, Plan, World
from tests.support.fake_device import FakeDevice, Run, Stream
from tests.support.ranks import BLOCK_TOKENS, LAYERS, Ranks

SCHEDULES = int(os.environ.get("SCHEDULES", "200"))


@pytest.mark.parametrize("name", PLANS)
def test_what_is_committed_is_what_the_kernels_wrote(name: str) -> None:
    """I1: under any schedule of device, sender, link, messages and D, and nothing is left over."""
    seen = Counter[str]()
    for seed in range(SCHEDULES):
        world = World(PLANS[name], seed)
        assert not (problem := world.run()), f"seed {seed}: {problem}"
        seen += world.traffic.seen
        seen["waits for the device"] += world.waits

    missing = {
        "several prompts in a step",
        "chunk that ends inside a block",
        "hit of what this step or the last writes",
        "hit of a finished prompt",
        "preempted while computing",
        "preempted when computed",
        "reserved between layers",
    } - seen.keys()
    assert not missing
    assert (seen["waits for the device"] == 0) == name.startswith("stream")


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_missing_precaution_is_found_out(mutant: Mutant) -> None:
    """Without it D counts KV as committed that P's kernels never wrote for that prompt."""
    problems = (mutant.world(mutant.plan, seed).run() for seed in range(5 * SCHEDULES))

    assert "found" in next(filter(None, problems), "")


@pytest.mark.parametrize("layer_sync", ["event", "stream", "forward"])
def test_our_workers_call_keeps_zeroed_blocks_from_being_committed(layer_sync: str) -> None:
    """I2 in the V2 order, where blocks are zeroed in the step that takes them away; without the call it is a mutant above."""
    for seed in range(SCHEDULES):
        problem = Crowded(Plan(layer_sync=layer_sync, order=Order.V2), seed).run()
        assert not problem, f"seed {seed}: {problem}"


def on_streams(ranks: Ranks, layer_sync: str, source: Stream, target: Stream, *, zeroing_awaited: bool = True) -> None:
    """Tell workers that have been made for a host that their nodes have devices."""
    stream = ModelStream(device_type="fake", record=source.record_event, synchronize=source.synchronize)
    ranks.prefill._sync = make_layer_sync(layer_sync, LAYERS, ranks.prefill._sender.hand, stream)
    if zeroing_awaited:
        ranks.decode._record = target.record_event


def compute(ranks: Ranks, stream: Stream, name: str, blocks: list[int]) -> None:
    """P computes a prompt of full blocks in one step, on its device."""
    prompt = Prompt(len(blocks) * BLOCK_TOKENS, len(blocks), f"prompt {name}".encode())
    started, progress = StartedPrompt(name, f"p-{name}", prompt), Progress(f"p-{name}", [blocks], len(blocks))
    ranks.prefill.begin_step(PrefillStep(started=[started], progress=[progress]))
    for layer in range(LAYERS):
        ranks.prefill.attention_begins(f"layer.{layer}")
        for block in blocks:
            stream.launch(partial(ranks.source.write, layer, block, f"{name} layer {layer} block {block}"))
        ranks.prefill.layer_written(f"layer.{layer}")
    ranks.prefill.end_step()


def zero(ranks: Ranks, stream: Stream, blocks: list[int]) -> None:
    """D's runner zeroes blocks that it has just allocated."""
    for layer in range(LAYERS):
        for block in blocks:
            stream.launch(partial(ranks.target.write, layer, block, "zero"))


@pytest.mark.parametrize("layer_sync", ["event", "stream", "forward"])
def test_real_threads_read_nothing_early(tmp_path: Path, layer_sync: str) -> None:
    """Prompt after prompt in the same blocks: each arrives as its own kernels wrote it, zeroing and all."""
    with FakeDevice(1) as p, FakeDevice(2) as d, Ranks(tmp_path, layer_sync=layer_sync) as ranks:
        source, target = p.stream(), d.stream()
        on_streams(ranks, layer_sync, source, target)
        for name in "abcdefgh":
            ranks.watch(name)
            zero(ranks, target, [7, 3])
            ranks.reserve(name, 2 * BLOCK_TOKENS, [7, 3])
            compute(ranks, source, name, [1, 2])
            ranks.wait_until(partial(lambda request: request in ranks.closed, f"d-{name}"))
            p.synchronize()
            d.synchronize()

            assert ranks.target.read(LAYERS - 1, 3).startswith(f"{name} layer {LAYERS - 1} block 2".encode())
            assert ranks.arrived({7: 1, 3: 2})
        assert ranks.failed == {}
        assert ("baton-written" in p.waits) == (layer_sync != "stream")
        assert "baton-sender" not in p.waits


def test_reserve_is_sent_when_zeroing_has_completed(tmp_path: Path) -> None:
    """I6: until then P does not learn where to write, however long the kernels take."""
    with FakeDevice(1, Run.ON_ADVANCE) as d, FakeDevice(2, Run.ON_WAIT) as p, Ranks(tmp_path) as ranks:
        source, target = p.stream(), d.stream()
        on_streams(ranks, "event", source, target)
        ranks.watch("a")
        zero(ranks, target, [7])
        ranks.reserve("a", BLOCK_TOKENS, [7])
        compute(ranks, source, "a", [1])
        ranks.wait_until(lambda: ranks.started == {"a"} and d.waits.total() == 1)
        zeroings = d.advance(LAYERS)
        ranks.wait_until(lambda: ranks.prefill.snapshot()["transfers"] != [])

        assert zeroings == LAYERS
        assert [transfer["epoch"] for transfer in ranks.prefill.snapshot()["transfers"]] == [0]
        assert [transfer["state"] for transfer in ranks.decode.snapshot()["transfers"]] == ["prepared"]
        d.advance()
        ranks.wait_until(lambda: ranks.closed == ["d-a"])
        assert ranks.arrived({7: 1})
        assert set(d.waits) == {"baton-zeroed"}


def test_without_waiting_for_zeroing_received_kv_is_lost(tmp_path: Path) -> None:
    """I6, the mutant: D records nothing, so the KV arrives first and the zeroing kernel runs over it."""
    with FakeDevice(1, Run.ON_ADVANCE) as d, FakeDevice(2, Run.ON_WAIT) as p, Ranks(tmp_path) as ranks:
        source, target = p.stream(), d.stream()
        on_streams(ranks, "event", source, target, zeroing_awaited=False)
        ranks.watch("a")
        zero(ranks, target, [7])
        ranks.reserve("a", BLOCK_TOKENS, [7])
        compute(ranks, source, "a", [1])
        ranks.wait_until(lambda: ranks.finished == {"d-a"})
        d.advance(LAYERS)

        assert ranks.failed == {}
        assert not ranks.arrived({7: 1})
