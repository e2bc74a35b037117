"""The prefill worker on a late device: layers leave as the device writes them, not when the host has time for them.

The clock is virtual, so figures are exact and the load of the machine plays no part. Real threads: at the end.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, partial
from itertools import pairwise
from pathlib import Path

import pytest

from baton.kv_connector.handoff.metadata import PrefillStep, StartedPrompt
from baton.kv_connector.handoff.outgoing import Progress, Prompt
from baton.kv_connector.worker_side import waiter
from baton.kv_connector.worker_side.sync import POLICIES, ModelStream, make_layer_sync
from tests.support.fake_device import FakeDevice, Run, Stream
from tests.support.late_device import LateDevice
from tests.support.late_prefill import RankResult, Scenario, prefill_node, run
from tests.support.ranks import BLOCK_TOKENS, LAYERS, Ranks
from tests.support.virtual_host import RealHost

BASE = Scenario()
SCENARIOS: Mapping[str, Scenario] = {
    "one chunk": BASE,
    "four chunks": replace(BASE, chunks=4),
    "backlog: reserved at 60 ms": replace(BASE, reserved_s=0.060),
    "prefix hit: half the prompt": replace(BASE, cached_tokens=1024, launch_s=0.010, compute_s=0.050),
    "preempted before the third of four chunks": replace(BASE, chunks=4, void_before_chunk=2),
    "a drafter's layer behind the 32": replace(BASE, draft_layers=1),
}
# Every case under every policy, every policy with either number of ranks.
CELLS = [(name, policy, 1 + (at + to) % 2) for at, name in enumerate(SCENARIOS) for to, policy in enumerate(POLICIES)]


@cache
def results(name: str, policy: str, tp: int) -> tuple[RankResult, ...]:
    return tuple(run(replace(SCENARIOS[name], policy=policy, tp=tp)))


def lateness_ms(result: RankResult) -> float:
    """Return the longest that a layer's last push left behind its being written, ms."""
    return max(((layer.left[-1] - layer.written[-1]) * 1e3 for layer in result.layers if layer.left), default=0.0)


def test_late_device_event_hides_the_transfer_behind_the_forward_pass() -> None:
    """32 layers launched in 10 ms and computed in 100 ms, C = X: all but the last leave before the end of the pass."""
    (rank,) = run(BASE)

    assert rank.before_the_end >= 30
    assert rank.hidden_share is not None
    assert rank.hidden_share >= 0.95
    assert rank.outcome["hidden_share"] == pytest.approx(rank.hidden_share, abs=0.02)
    assert set(rank.waits) == {"baton-written"}


def test_late_device_milestones_are_those_of_the_device() -> None:
    """Point 11: a layer was written when the device had passed its event, not when it had been handed over."""
    (rank,) = run(replace(BASE, policy="forward"))
    timings = rank.outcome["timings_s"]

    assert timings["last_layer"] == pytest.approx(rank.forward_end, abs=0.001)
    assert rank.outcome["exposed_push_s"] == pytest.approx(timings["commit"] - rank.forward_end, abs=0.001)


@pytest.mark.parametrize(("name", "policy", "tp"), CELLS)
def test_late_device_layers_leave_in_order_and_none_before_it_is_written(name: str, policy: str, tp: int) -> None:
    """I1 by the clock, under every policy and case; no thread uses a device that it has not set."""
    for rank in results(name, policy, tp):
        for layer in rank.layers:
            assert all(left >= written for left, written in zip(layer.left, layer.written, strict=False))
        firsts = [layer.left[0] for layer in rank.layers[: rank.targets] if layer.left]
        assert all(one <= other for one, other in pairwise(firsts))
        assert rank.strays == {}
        assert "baton-sender" not in rank.waits


@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize("policy", ["event", "stream"])
def test_late_device_layers_of_a_chunk_leave_as_they_are_written(policy: str, tp: int) -> None:
    """Neither a chunk nor a second rank makes a layer wait for another one."""
    for name in ("one chunk", "four chunks"):
        for rank in results(name, policy, tp):
            assert rank.before_the_end >= 30
            assert lateness_ms(rank) < 1


def test_late_device_backlog_leaves_when_it_is_reserved() -> None:
    """The sender looks after what becomes possible while the device is late: it does not wait for the pass to end."""
    (rank,) = results("backlog: reserved at 60 ms", "event", 1)
    scenario = SCENARIOS["backlog: reserved at 60 ms"]

    assert scenario.reserved_s <= rank.layers[0].left[0] < scenario.reserved_s + 0.001
    assert rank.before_the_end >= 12


@pytest.mark.parametrize("policy", ["event", "stream", "forward"])
def test_late_device_preempted_prompt_stops_leaving(policy: str) -> None:
    """I2: layers that the device writes after the preemption do not leave; the transfer ends clean."""
    (rank,) = results("preempted before the third of four chunks", policy, 1)

    assert (rank.outcome["state"], rank.outcome["reason"]) == ("failed", "preempted")
    assert (
        max((layer.left[-1] for layer in rank.layers if layer.left), default=0.0) < rank.outcome["timings_s"]["failed"]
    )
    assert rank.outcome["bytes_pushed"] < rank.outcome["bytes_expected"]


@pytest.mark.parametrize("policy", ["event", "forward"])
@pytest.mark.parametrize("chunks", [1, 4])
def test_late_device_several_answers_each_get_what_the_device_has_written(policy: str, chunks: int) -> None:
    """To the scheduler the prompt of a further answer is cached; the device may not have written a layer of it."""
    scenario = replace(BASE, policy=policy, chunks=chunks, answers=3)
    with prefill_node(scenario) as (host, (rank,)):
        begun = host.now()
        rank.reserve()
        host.thread(rank.compute, "model").start()
        host.sleep(3.0)
        result, records = rank.result(begun), rank.worker.snapshot()["recent"]

    assert [record["state"] for record in records] == ["committed"] * 3
    assert all(record["bytes_pushed"] == record["bytes_expected"] > 0 for record in records)
    for layer in result.layers:
        assert all(left >= written for left, written in zip(layer.left, layer.written, strict=False))
        assert all(
            left >= layer.written[-1] for left in layer.left[chunks - 1 :]
        )  # the last chunk's, and two whole prompts


@pytest.mark.parametrize("transfer_s", [0.01, 1.0, 100.0])
def test_late_device_pushes_are_looked_at_seldom_and_seen_to_end_soon(transfer_s: float) -> None:
    """On a link of any speed: two full calls under way, and an end seen within 5 % or 20 ms, whichever is less."""
    (rank,) = run(replace(BASE, policy="forward", transfer_s=transfer_s), patience_s=200.0)

    assert rank.link.most_under_way == 2
    for push in rank.link.pushes:
        assert push.seen_at is not None
        took_s = push.seen_at - push.begins_at
        assert push.seen_at - push.ends_at <= min(max(0.05 * took_s, 0.0003), 0.02) + 0.0003
        assert push.looks < 220 + took_s / 0.01  # those in which it waited for its turn included


def test_late_device_small_layers_go_together() -> None:
    """A call is worth 256 KiB: layers of a block of 64 KiB go by four, those of four blocks or more alone."""
    with prefill_node(BASE) as (_, (rank,)):
        assert [rank.worker._sender.layers_at_once(blocks) for blocks in (0, 1, 2, 3, 4, 100)] == [
            256 << 10,
            4,
            2,
            2,
            1,
            1,
        ]


@pytest.mark.parametrize("how", ["hangs", "breaks"])
def test_late_device_that_stops_voids_the_prompt_and_leaves_the_worker_alive(how: str) -> None:
    """Layers that it had written have left; a prompt that it never finishes ends clean, at the latest by the patience."""
    with prefill_node(replace(BASE, layers=8)) as (host, (rank,)):
        rank.reserve()
        host.thread(rank.compute, "model").start()
        host.sleep(0.050)
        rank.device.hang() if how == "hangs" else rank.device.lose()
        host.sleep(1.0)
        assert bool(rank.worker.snapshot()["recent"]) == (how == "breaks")
        for _ in range(3):
            host.sleep(60.0)
            rank.worker.on_tick()

        (record,) = rank.worker.snapshot()["recent"]
        reason = "the device failed" if how == "breaks" else "the device made no progress for 120 s"
        assert (record["state"], record["reason"]) == ("failed", reason)
        assert record["bytes_pushed"] == record["bytes_expected"] * 3 // 8
        stopping = host.now()
        rank.worker.stop()
        assert host.now() - stopping <= 2 * waiter.STOP_S


# --- real threads ---


@contextmanager
def hung_prefill(folder: Path) -> Iterator[tuple[Ranks, FakeDevice, Stream]]:
    """Make ranks whose P computes on a device that moves only when it is told to."""
    with FakeDevice(1, Run.ON_ADVANCE) as device, Ranks(folder, layer_sync="event") as ranks:
        stream = device.stream()
        compute_on(ranks, stream, "event")
        ranks.prefill._sender.layers_at_once = lambda blocks: 1  # type: ignore[method-assign]  # its layers are tiny
        yield ranks, device, stream


def compute_on(ranks: Ranks, stream: Stream, layer_sync: str) -> None:
    """Tell P's worker, which has been made for a host, that its node has a device."""
    model = ModelStream(device_type="fake", record=stream.record_event, synchronize=stream.synchronize)
    ranks.prefill._sync = make_layer_sync(layer_sync, LAYERS, ranks.prefill._sender.hand, model)


def launch(ranks: Ranks, stream: Stream, name: str, *blocks: int) -> None:
    """P's model thread runs a prompt of full blocks: everything is launched, nothing has run."""
    prompt = Prompt(len(blocks) * BLOCK_TOKENS, len(blocks), f"prompt {name}".encode())
    started, progress = StartedPrompt(name, f"p-{name}", prompt), Progress(f"p-{name}", [list(blocks)], len(blocks))
    ranks.prefill.begin_step(PrefillStep(started=[started], progress=[progress]))
    for layer in range(LAYERS):
        ranks.prefill.attention_begins(f"layer.{layer}")
        for block in blocks:
            stream.launch(partial(ranks.source.write, layer, block, f"{name} layer {layer} block {block}"))
        ranks.prefill.kv_issued(f"layer.{layer}")
    ranks.prefill.end_step()


def zero(ranks: Ranks, stream: Stream, blocks: list[int]) -> None:
    """D's runner zeroes blocks that it has just allocated."""
    for layer in range(LAYERS):
        for block in blocks:
            stream.launch(partial(ranks.target.write, layer, block, "zero"))


def pushes(ranks: Ranks) -> int:
    done: int = ranks.prefill.snapshot()["totals"]["pushes"]
    return done


def test_late_device_real_sender_pushes_each_layer_before_the_next_has_run(tmp_path: Path) -> None:
    """Everything is launched; the device goes on only when the layer before has been pushed. The old sender never was."""
    with hung_prefill(tmp_path) as (ranks, device, stream):
        ranks.ask("a", BLOCK_TOKENS, [7])
        launch(ranks, stream, "a", 1)
        for layer in range(LAYERS):
            assert device.advance(2) == 2  # the layer and its event
            ranks.wait_until(lambda expected=layer + 1: pushes(ranks) == expected)  # type: ignore[misc]

        ranks.wait_until(lambda: ranks.closed == ["d-a"])
        assert ranks.arrived({7: 1})
        assert set(device.waits) == {"baton-written"}


def test_late_device_that_hangs_holds_up_no_other_prompt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A prompt that has been written arrives while the waiter hangs; the other ends clean; the worker stops."""
    monkeypatch.setattr(waiter, "STOP_S", 0.05)
    with hung_prefill(tmp_path) as (ranks, device, stream):
        launch(ranks, stream, "a", 1)
        device.advance(2 * LAYERS)
        launch(ranks, stream, "b", 2)
        ranks.wait_until(lambda: device.waits.total() == LAYERS + 1)  # the waiter hangs
        for name, block in (("a", 7), ("b", 8)):
            ranks.ask(name, BLOCK_TOKENS, [block])

        ranks.wait_until(lambda: ranks.closed == ["d-a"])
        assert ranks.arrived({7: 1})
        ranks.prefill._sender._waiter._patience_s = 0.0
        ranks.wait_until(lambda: ranks.closed == ["d-a", "d-b"])
        assert list(ranks.failed) == ["d-b"]
        assert "no progress" in ranks.failed["d-b"]
        assert ranks.decode.snapshot()["totals"]["fences"] == 0  # clean: nothing of it was under way


def test_late_device_of_a_decode_rank_is_waited_for_by_its_own_thread(tmp_path: Path) -> None:
    """Device 1: the thread that waits for zeroing has set it, and no thread spins."""
    device = LateDevice(RealHost(), index=1, launch_s=0)
    device.enter()
    stream = device.stream()
    with Ranks(tmp_path, decode_record=stream.record_event, decode_enters=device.enter) as ranks:
        ranks.watch("a")
        stream.launch(cost_s=0.02)
        ranks.reserve("a", BLOCK_TOKENS, [7])
        ranks.compute("a", tokens=BLOCK_TOKENS, blocks=[1], ready=1)
        ranks.wait_until(lambda: ranks.finished == {"d-a"})

    assert set(device.waits) == {"baton-zeroed"}
    assert not device.strays
    assert not device.spun


@pytest.mark.parametrize("layer_sync", ["event", "stream", "forward"])
def test_late_devices_of_both_ranks_let_nothing_be_read_early(tmp_path: Path, layer_sync: str) -> None:
    """Prompt after prompt in the same blocks: each arrives as its own kernels wrote it, zeroing and all."""
    with FakeDevice(1) as p, FakeDevice(2) as d, Ranks(tmp_path, layer_sync=layer_sync) as ranks:
        source, target = p.stream(), d.stream()
        compute_on(ranks, source, layer_sync)
        ranks.decode._record = target.record_event
        for name in "abcdefgh":
            ranks.watch(name)
            zero(ranks, target, [7, 3])
            ranks.reserve(name, 2 * BLOCK_TOKENS, [7, 3])
            launch(ranks, source, name, 1, 2)
            ranks.wait_until(partial(lambda request: request in ranks.closed, f"d-{name}"))
            p.synchronize()
            d.synchronize()

            assert ranks.target.read(LAYERS - 1, 3).startswith(f"{name} layer {LAYERS - 1} block 2".encode())
            assert ranks.arrived({7: 1, 3: 2})
        assert ranks.failed == {}
        assert ("baton-written" in p.waits) == (layer_sync != "stream")
        assert "baton-sender" not in p.waits


def test_late_device_of_a_decode_rank_has_zeroed_before_it_reserves(tmp_path: Path) -> None:
    """I6: until then P does not learn where to write, however long the kernels take. KV that came first would be lost."""
    with (
        FakeDevice(1, Run.ON_ADVANCE) as d,
        Ranks(tmp_path, decode_record=(target := d.stream()).record_event) as ranks,
    ):
        ranks.watch("a")
        zero(ranks, target, [7])
        ranks.reserve("a", BLOCK_TOKENS, [7])
        ranks.compute("a", tokens=BLOCK_TOKENS, blocks=[1], ready=1)
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
