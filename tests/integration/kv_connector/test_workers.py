"""A prefill and a decode worker talk over real sockets; only the transfer engine is in memory."""

import asyncio
import threading
import time
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
import zmq

from baton.kv_connector.control.sockets import MAX_PAYLOAD_BYTES, ControlClient
from baton.kv_connector.control.wake import Waker
from baton.kv_connector.handoff.metadata import Abandoned, DecodeStep, PrefillStep, StartedPrompt
from baton.kv_connector.handoff.outgoing import Progress, Prompt
from baton.kv_connector.protocol.messages import Fail, Hello, Introduce, Message, Rank, encode
from baton.kv_connector.worker_side.prefill import NOT_FETCHED
from baton.node.connector.connector_channel import Outcomes
from tests.support.fake_device import FakeDevice, Run
from tests.support.ranks import FINGERPRINT, SECRET, Ranks


def send_a_block(ranks: Ranks) -> None:
    """Transfer `a` is under way: the first block of three has arrived."""
    ranks.ask("a", 40, [7, 3, 4])
    ranks.compute("a", tokens=40, blocks=[1, 2], ready=1)
    ranks.wait_until(lambda: ranks.arrived({7: 1}))


def test_the_node_hears_of_a_reservation(tmp_path: Path) -> None:
    """A first token waits for it in the prefill node's API server."""

    async def wait(ranks: Ranks) -> bool:
        outcomes = Outcomes(tmp_path)
        outcomes.start()
        ranks.hand_over()
        heard = await outcomes.wait_until_reserved("a", 20)
        outcomes.stop()
        return heard

    with Ranks(tmp_path) as ranks:
        assert asyncio.run(wait(ranks))


def test_layers_computed_before_the_reservation_are_pushed_as_a_backlog(tmp_path: Path) -> None:
    """P never waits for D, and D learns at once that the prompt has started."""
    with Ranks(tmp_path) as ranks:
        ranks.compute("a", tokens=40, blocks=[1, 2, 5], ready=3)
        ranks.prefill.begin_step(PrefillStep(holds=["p-a"]))
        ranks.watch("a")
        ranks.wait_until(lambda: ranks.started == {"a"})
        ranks.reserve("a", 40, [7, 3, 4])

        ranks.wait_until(lambda: ranks.finished == {"d-a"})

        assert ranks.arrived({7: 1, 3: 2, 4: 5})
        assert ranks.prefill.take_released() == {"p-a"}


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


def test_the_node_hears_of_each_reservation_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not of an introduction, and not of what D says of the same transfer later."""
    told: list[str] = []
    with Ranks(tmp_path) as ranks:
        monkeypatch.setattr(ranks.prefill._outcomes, "send_reserved", told.append)
        ranks.ask("a", 16, [7])
        ranks.wait_until(lambda: bool(told))
        ranks.decode.cancel(["a"])
        ranks.wait_until(lambda: ranks.closed == ["d-a"])
        ranks.ask("b", 16, [7])
        ranks.wait_until(lambda: "b" in told)

    assert told == ["a", "b"]


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


def test_a_broken_connection_to_a_living_prefill_rank_costs_nothing(tmp_path: Path) -> None:
    """Liveness only: P answers over the next connection, and the transfer goes on."""
    with Ranks(tmp_path, reconnect_timeout_s=0.3) as ranks:
        send_a_block(ranks)
        ranks.decode.on_disconnect(("dial", ranks.prefill.address))
        time.sleep(0.6)
        ranks.compute("a", tokens=40, blocks=[5], ready=3, first=False)

        ranks.wait_until(lambda: ranks.finished == {"d-a"})

        assert ranks.failed == {}


def test_what_is_known_of_decode_ranks_that_have_gone_is_forgotten(tmp_path: Path) -> None:
    """When the next one is met."""
    with Ranks(tmp_path) as ranks:
        ranks.hand_over()
        ranks.wait_until(lambda: ranks.finished == {"d-a"})
        sender, gone = ranks.prefill._sender, 99
        sender._pairings, sender._ended_s = {gone: sender._pairings[22]}, {gone: 0.0}

        ranks.hand_over("b")
        ranks.wait_until(lambda: ranks.finished == {"d-a", "d-b"})

        assert set(sender._pairings) == set(sender._ended_s) == {22}


def test_a_prompt_arrives_whole_and_is_timed_on_both_sides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reserved before it is computed. P keeps its milestones and sends them along; D adds when it sent RESERVE and when COMMIT came."""
    words: list[str] = []
    monkeypatch.setattr(Waker, "wake", lambda _: words.append("wake"))
    with Ranks(tmp_path) as ranks:
        ranks.hand_over()
        ranks.wait_until(lambda: ranks.finished == {"d-a"} and ranks.closed == ["d-a"])
        assert words, "D's engine sleeps while there is news for it"
        assert ranks.failed == {}
        assert ranks.arrived({7: 1, 3: 2, 4: 5})

        snapshot = ranks.prefill.snapshot()
        (record,) = snapshot["recent"]
        timings, ending = record["timings_s"], ranks.endings["d-a"]

        assert (record["transfer_id"], record["state"]) == ("a", "committed")
        assert timings["scheduled"] == 0.0 <= timings["first_layer"] <= timings["first_push"] < timings["last_push"]
        assert timings["last_layer"] <= timings["last_push"] <= timings["commit"]
        assert 0 < record["pushing_s"] <= timings["last_push"] - timings["first_push"] + 1e-5
        assert record["exposed_push_s"] == timings["commit"] - timings["last_layer"]
        assert sum(snapshot["histograms"]["exposed_push_s"]["counts"]) == 1
        assert ending.committed
        assert ending.timings_s == timings
        assert ending.pushing_s == pytest.approx(record["pushing_s"], abs=1e-6)
        assert ending.reserve_sent_s is not None
        assert ending.reserve_sent_s < ending.at_s


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


def send_raw(ranks: Ranks, payloads: list[bytes]) -> None:
    """A client with the secret dials P and says these things, in order."""
    with zmq.Context() as context:
        client = ControlClient(ranks.prefill.address, SECRET, context)
        for payload in payloads:
            client.send(payload)
        while client.waiting:
            client.flush()
            time.sleep(0.01)
        time.sleep(0.1)
        client.close()


def test_frames_that_are_no_messages_are_counted_by_kind(tmp_path: Path) -> None:
    """On both sides, in what the node API shows; a transfer that goes on at the same time arrives."""
    greeting = Hello(node="x", rank=Rank(), fingerprint=FINGERPRINT, regions=[])
    frames = [
        b"",
        b"rubbish",
        encode(Message(5, 11, 1, Introduce())),
        encode(Message(6, 0, 2, greeting)),
        bytes(MAX_PAYLOAD_BYTES + 1),
    ]
    with Ranks(tmp_path) as ranks:
        ranks.ask("a", 16, [7])
        ranks.wait_until(lambda: bool(ranks.prefill.snapshot()["transfers"]))
        send_raw(ranks, frames)
        ranks.decode.on_payload(("dial", ranks.prefill.address), b"rubbish")
        ranks.decode.on_payload(("dial", "tcp://elsewhere:1"), frames[2])
        ranks.compute("a", tokens=16, blocks=[1], ready=1)
        ranks.wait_until(lambda: ranks.finished == {"d-a"})

        refused = ranks.prefill.snapshot()["refused"]
        assert refused == {"malformed": 2, "stranger": 1, "second_sender": 1, "oversized": 1}
        assert ranks.decode.snapshot()["refused"] == {"malformed": 1, "stranger": 1}
        assert ranks.arrived({7: 1})


def test_a_snapshot_describes_no_more_transfers_than_one_can_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is made under the lock that the model thread needs; the number of all of them is told."""
    monkeypatch.setattr("baton.kv_connector.worker_side.prefill.MAX_DESCRIBED", 2)
    monkeypatch.setattr("baton.kv_connector.worker_side.describing.MAX_DESCRIBED", 2)
    with Ranks(tmp_path) as ranks:
        for name in "abc":
            ranks.watch(name)
        ranks.wait_until(lambda: ranks.prefill.snapshot()["open_transfers"] == 3)

        for worker in (ranks.prefill, ranks.decode):
            snapshot = worker.snapshot()
            assert (len(snapshot["transfers"]), snapshot["open_transfers"]) == (2, 3)
