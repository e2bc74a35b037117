"""Transfers that end without their KV, between workers over real sockets: D computes the prompt, P lets its blocks go."""

import threading
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from baton.kv_connector.handoff.metadata import Abandoned, DecodeStep, PrefillStep, StartedPrompt
from baton.kv_connector.handoff.outgoing import Progress, Prompt
from baton.kv_connector.protocol.messages import Fail, Message, encode
from baton.kv_connector.worker_side.prefill import NOT_FETCHED
from tests.support.fake_device import FakeDevice, Run
from tests.support.ranks import FINGERPRINT, Ranks, send_a_block


def test_a_failed_push_is_recomputed_at_once_and_its_blocks_wait_for_the_fence(tmp_path: Path) -> None:
    """I3: bytes of a dirty epoch that land late find the engine destroyed before the blocks are given back."""
    with Ranks(tmp_path) as ranks:
        ranks.fabric.fail_next()
        ranks.hand_over()

        ranks.wait_until(lambda: "d-a" in ranks.failed)
        ranks.wait_until(lambda: ranks.closed == ["d-a"])
        before = ranks.target.read(0, 7)
        ranks.fabric.land_all()

        assert ranks.target.read(0, 7) == before
        assert ranks.decode.snapshot()["totals"]["fences"] == 1

        ranks.ask("b", 16, [7])
        ranks.compute("b", tokens=16, blocks=[6], ready=1)
        ranks.wait_until(lambda: "d-b" in ranks.finished)
        assert ranks.arrived({7: 6})


def test_a_cancel_ends_both_sides(tmp_path: Path) -> None:
    """The proxy tells P alone: what P holds is released, and D, which waits for it, hears at once."""
    with Ranks(tmp_path) as ranks:
        send_a_block(ranks)

        assert ranks.prefill.cancel(["a", "unknown"]) == 1
        ranks.wait_until(lambda: ranks.closed == ["d-a"])

        assert ranks.failed == {"d-a": "cancelled by the proxy"}
        totals = ranks.prefill.snapshot()["totals"]
        assert (totals["cancelled"], totals["failed"], totals["revoked"]) == (1, 0, 0)
        assert ranks.prefill.snapshot()["failures"] == []
        ranks.prefill.begin_step(PrefillStep(holds=["p-a"]))
        assert ranks.prefill.take_released() == {"p-a"}


def test_a_cancel_on_the_decode_rank_ends_both_sides(tmp_path: Path) -> None:
    """D stops waiting and P stops pushing; a request that still wants its answer computes the prompt."""
    with Ranks(tmp_path) as ranks:
        send_a_block(ranks)

        assert ranks.decode.cancel(["unknown", "a"]) == 1
        ranks.wait_until(lambda: ranks.closed == ["d-a"])

        assert ranks.finished == {"d-a"}
        assert ranks.failed == {"d-a": "cancelled"}
        assert ranks.prefill.snapshot()["transfers"] == []


def test_a_request_that_leaves_the_decode_node_ends_both_sides(tmp_path: Path) -> None:
    """Aborted or preempted while it waited: P is told, and lets its blocks go."""
    with Ranks(tmp_path) as ranks:
        send_a_block(ranks)
        ranks.decode.begin_step(DecodeStep(cancelled=["d-a"]))
        ranks.wait_until(lambda: ranks.closed == ["d-a"])

        assert ranks.failed == {"d-a": "cancelled"}
        assert ranks.prefill.snapshot()["transfers"] == []


def test_other_weights_are_refused_before_any_byte_moves(tmp_path: Path) -> None:
    """The reason names both sides and both values."""
    other = msgspec.structs.replace(FINGERPRINT, weights="another revision")
    with Ranks(tmp_path, decode_fingerprint=other) as ranks:
        ranks.watch("a")
        ranks.compute("a", tokens=16, blocks=[1], ready=1)

        ranks.wait_until(lambda: "d-a" in ranks.failed)

        reason = ranks.failed["d-a"]
        assert [word for word in ("P", "D", "weights", "'w'", "'another revision'") if word not in reason] == [], reason
        assert ranks.prefill.snapshot()["totals"]["bytes"] == 0


STEP = PrefillStep(
    started=[StartedPrompt("a", "p-a", Prompt(16, 1, b"prompt a"))], progress=[Progress("p-a", [[1]], 1)]
)


def test_a_forward_pass_that_raises_is_never_committed(tmp_path: Path) -> None:
    """I1: vLLM calls `wait_for_save` while the exception propagates; the layers behind it were never written."""
    with Ranks(tmp_path) as ranks:
        ranks.ask("a", 16, [7])
        ranks.prefill.begin_step(STEP)
        ranks.prefill.kv_issued("layer.0")
        try:
            raise MemoryError
        except MemoryError:
            ranks.prefill.end_step()

        ranks.wait_until(lambda: ranks.closed == ["d-a"])

        assert ranks.failed == {"d-a": "the forward pass failed"}


def test_a_prompt_that_is_voided_in_the_step_in_which_it_starts_is_never_pushed(tmp_path: Path) -> None:
    """I2: some of its blocks were never its own."""
    with Ranks(tmp_path) as ranks:
        ranks.ask("a", 16, [7])
        ranks.prefill.begin_step(replace(STEP, voids=[("p-a", "blocks that are still read are gone")]))

        ranks.wait_until(lambda: ranks.closed == ["d-a"])

        assert ranks.failed == {"d-a": "blocks that are still read are gone"}


def test_a_prompt_that_will_never_start_is_told_at_once(tmp_path: Path) -> None:
    """Aborted while it queued on P: D does not wait for its time-out."""
    with Ranks(tmp_path) as ranks:
        ranks.ask("a", 16, [7])
        ranks.wait_until(lambda: bool(ranks.prefill.snapshot()["transfers"]))
        ranks.prefill.begin_step(PrefillStep(abandoned=[Abandoned("a", "aborted before it was scheduled")]))

        ranks.wait_until(lambda: ranks.closed == ["d-a"])

        assert ranks.failed == {"d-a": "aborted before it was scheduled"}


def test_a_held_prompt_that_no_decode_rank_has_blocks_for_is_given_up(tmp_path: Path) -> None:
    """P stands still for want of its blocks: they come back at once, and D computes the prompt."""
    with Ranks(tmp_path) as ranks:
        ranks.watch("a")
        ranks.compute("a", tokens=16, blocks=[1], ready=1)
        ranks.wait_until(lambda: ranks.started == {"a"})
        ranks.prefill.begin_step(PrefillStep(holds=["p-a"], unfetched=["p-a"]))

        assert ranks.prefill.take_released() == {"p-a"}
        ranks.wait_until(lambda: ranks.failed == {"d-a": NOT_FETCHED})


def test_a_failure_without_a_reason_is_no_commit(tmp_path: Path) -> None:
    """I4: what had not arrived would be read."""
    with Ranks(tmp_path) as ranks:
        ranks.ask("a", 16, [7])
        ranks.wait_until(lambda: any(transfer["epoch"] for transfer in ranks.prefill.snapshot()["transfers"]))
        fail = Fail(transfer_id="a", epoch=1, dirty=False, reason="")
        ranks.decode.on_payload(("dial", ranks.prefill.address), encode(Message(11, 22, 1 << 40, fail)))

        ranks.poll()

        assert (ranks.failed, ranks.closed) == ({"d-a": ""}, ["d-a"])
        assert ranks.decode.snapshot()["totals"]["loaded"] == 0


def test_a_device_that_fails_costs_a_recomputation_at_once(tmp_path: Path) -> None:
    """Not after `transfer_timeout_s`; P hears that nothing is wanted, and the thread lives on."""
    devices = [FakeDevice(1, Run.ON_ADVANCE), FakeDevice(2, Run.ON_WAIT)]
    streams = [device.stream() for device in devices]
    with Ranks(tmp_path, decode_record=lambda: streams.pop(0).record_event()) as ranks:
        ranks.watch("a")
        ranks.watch("b")
        ranks.reserve("a", 16, [7])
        ranks.wait_until(lambda: len(ranks.prefill.snapshot()["transfers"]) == 2)
        devices[0].lose()
        ranks.wait_until(lambda: ranks.closed == ["d-a"])

        assert ranks.failed == {"d-a": "the device failed before the decode node's blocks were zeroed"}
        assert ranks.finished == {"d-a"}
        ranks.reserve("b", 16, [8])
        ranks.compute("b", tokens=16, blocks=[1], ready=1)
        ranks.wait_until(lambda: ranks.finished == {"d-a", "d-b"})
        assert ranks.arrived({8: 1})
        assert ranks.prefill.snapshot()["transfers"] == []
        assert sum(thread.name == "baton-zeroed" for thread in threading.enumerate()) == 1
    for device in devices:
        device.close()


def test_a_device_that_hangs_costs_a_recomputation_within_its_patience(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D hears of it from its control thread: the one that waits for the device does not come back."""
    monkeypatch.setattr("baton.kv_connector.worker_side.waiter.STOP_S", 0.05)
    with FakeDevice(1, Run.ON_ADVANCE) as device, Ranks(tmp_path, decode_record=device.stream().record_event) as ranks:
        ranks.ask("a", 16, [7])
        ranks.wait_until(lambda: device.waits.total() == 1)
        ranks.decode._zeroing._patience_s = 0.0

        ranks.wait_until(lambda: ranks.closed == ["d-a"])

        assert "the device made no progress" in ranks.failed["d-a"]
        assert "before the decode node's blocks were zeroed" in ranks.failed["d-a"]


def test_a_prefill_rank_that_hung_up_is_not_waited_for_as_a_silent_one(tmp_path: Path) -> None:
    """The broken connection is a hint: D asks at once, and gives up after `reconnect_timeout_s` without an answer."""
    with Ranks(tmp_path, peer_timeout_s=60.0, reconnect_timeout_s=0.3) as ranks:
        send_a_block(ranks)
        ranks.prefill.stop()

        ranks.wait_until(lambda: ranks.closed == ["d-a"])

        assert "does not answer" in ranks.failed["d-a"]
        assert ranks.decode.snapshot()["totals"]["fences"] == 1
        ranks.wait_until(lambda: not ranks.decode._loop._clients)  # it is not dialled again


def test_a_preempted_prompt_is_never_committed(tmp_path: Path) -> None:
    """I2: its blocks may belong to another request from the next step on; D recomputes, cleanly. It is remembered, not measured."""
    with Ranks(tmp_path) as ranks:
        send_a_block(ranks)
        ranks.prefill.void(PrefillStep(voids=[("p-a", "preempted")]))
        ranks.compute("a", tokens=40, blocks=[5], ready=3, first=False)
        ranks.wait_until(lambda: ranks.closed == ["d-a"])

        assert ranks.failed == {"d-a": "preempted"}
        assert not ranks.endings["d-a"].committed
        assert ranks.decode.snapshot()["totals"]["fences"] == 0
        snapshot = ranks.prefill.snapshot()
        (record,) = snapshot["recent"]
        assert (record["state"], record["reason"]) == ("failed", "preempted")
        assert "failed" in record["timings_s"]
        assert record["exposed_push_s"] is None
        assert sum(snapshot["histograms"]["exposed_push_s"]["counts"]) == 0
        assert (snapshot["totals"]["failed"], len(snapshot["failures"])) == (1, 1)
