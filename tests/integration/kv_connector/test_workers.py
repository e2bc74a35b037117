"""A prefill and a decode worker talk over real sockets; only the transfer engine is in memory."""

import asyncio
import time
from pathlib import Path

import pytest
import zmq

from baton.kv_connector.control.sockets import MAX_PAYLOAD_BYTES, ControlClient
from baton.kv_connector.control.wake import Waker
from baton.kv_connector.handoff.metadata import PrefillStep
from baton.kv_connector.protocol.messages import Hello, Introduce, Message, Rank, encode
from baton.node.connector.connector_channel import Outcomes
from tests.support.ranks import FINGERPRINT, SECRET, Ranks, send_a_block


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
        sender._max_units_to = {gone: 1}

        ranks.hand_over("b")
        ranks.wait_until(lambda: ranks.finished == {"d-a", "d-b"})

        assert set(sender._pairings) == set(sender._ended_s) == set(sender._max_units_to) == {22}


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
