"""What a decode rank passes on, and when: its parts are replaced, and a test carries the messages."""

from pathlib import Path
from typing import Any

import pytest

from baton.kv_connector.handoff.metadata import DecodeReport, DecodeStep, Ending
from baton.kv_connector.protocol.messages import Beat, Fail, Hello, Message, OpenEpoch, Reserve, Revoke, encode
from tests.unit.kv_connector.worker_side.parts import Pair

RESERVE = Reserve(transfer_id="a", epoch=1, engine="e0", tokens=16, from_token=0, blocks=[[7]], prompt_hash=b"prompt a")


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pair:
    return Pair(tmp_path, monkeypatch)


def verified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pair:
    """Transfer `a` has been committed with digests."""
    pair = Pair(tmp_path, monkeypatch, kv_verify="full")
    pair.under_way()
    pair.push()
    (_, transfer, _), *_ = [each for each in pair.p.asked() if each[0] == "digests.ask"]
    pair.p.made["digests"].args[1](transfer, b"digest p" * 4)
    pair.d.asked()
    pair.carry()
    return pair


def arrived_on_a_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pair:
    """Transfer `a` has been committed; the device has not got it yet."""
    pair = Pair(tmp_path, monkeypatch, decode_device=object())
    pair.under_way()
    pair.d.asked()
    pair.push()
    pair.carry()
    return pair


def compare(pair: Pair, digests: bytes) -> None:
    """The digests of what arrived are there."""
    (_, asked, _), *_ = [each for each in pair.d.asked() if each[0] == "digests.ask"]
    pair.d.made["digests"].args[1](asked, digests)


@pytest.mark.parametrize("device", [None, object()])
def test_a_rank_hears_its_peers_when_everything_else_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: Any
) -> None:
    """Its own thread is the last to start, and each is stopped."""
    pair = Pair(tmp_path, monkeypatch, decode_device=device)
    landing = ["landing"] * (device is not None)

    pair.decode.start()

    before = [("waker.start",), ("engines.start",), ("engines.want", 0), ("zeroing.start",)]
    after = [("digests.start",), ("loop.start",)]
    assert pair.d.asked() == [*before, *((f"{name}.start",) for name in landing), *after]

    pair.decode.stop()

    assert sorted(pair.d.asked()) == [
        (f"{name}.stop",) for name in sorted(["waker", "engines", "zeroing", "digests", "loop", *landing])
    ]


def test_what_a_call_has_to_say_is_said_at_once(pair: Pair) -> None:
    """Not with the next tick."""
    pair.watch("a")
    [hello] = pair.d.sent()
    assert isinstance(hello, Hello)
    pair.carry()

    pair.reserve("a", 16, [7])
    assert pair.d.sent() == []
    pair.d.told("engines", "added", 0, "e0")
    assert pair.d.sent() == [RESERVE]
    pair.carry()

    pair.decode.on_disconnect(("dial", pair.prefill.address))
    assert pair.d.sent() == [Beat(open=[OpenEpoch("a", 1)])]
    pair.carry()

    pair.decode.on_tick()
    assert pair.d.sent() == [Beat(open=[OpenEpoch("a", 1)])]
    pair.carry()

    assert pair.decode.cancel(["a", "unknown"]) == 1
    assert pair.d.sent() == [Revoke(transfer_id="a", epoch=1)]


def test_a_request_that_leaves_is_revoked_by_the_step_that_says_so(pair: Pair) -> None:
    """P would go on writing until the next tick."""
    pair.under_way()

    pair.decode.begin_step(DecodeStep(cancelled=["d-a"]))

    assert pair.d.sent() == [Revoke(transfer_id="a", epoch=1)]


def test_a_tick_bounds_what_waits_for_the_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The threads that wait cannot bound it themselves."""
    pair = Pair(tmp_path, monkeypatch, decode_device=object())

    pair.decode.on_tick()

    assert pair.d.asked() == [("engines.want", 0), ("zeroing.give_up", 1000.0), ("landing.give_up", 1000.0)]


def test_blocks_that_are_being_zeroed_are_reserved_when_the_device_has_passed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I6; and declined at once if it does not."""
    event: Any = object()
    pair = Pair(tmp_path, monkeypatch, decode_record=lambda: event)
    pair.meet()
    pair.d.asked()

    pair.reserve("a", 16, [7])

    assert pair.d.sent() == []
    assert pair.d.asked() == [("zeroing.watch", event, ["d-a"])]
    pair.d.told("zeroing", "passed", ["d-a"], 1001.0)
    assert pair.d.sent() == [RESERVE]
    pair.d.told("zeroing", "failed", ["d-a"], "it failed")
    assert pair.d.sent() == [RESERVE, Revoke(transfer_id="a", epoch=1)]
    report = pair.decode.take_report()
    assert report is not None
    assert report.failed == {"d-a": "it failed before the decode node's blocks were zeroed"}


def test_blocks_of_a_failed_push_come_back_after_the_fence(pair: Pair) -> None:
    """I3: the request is told at once, its blocks when the engine is gone; the domain gets another."""
    pair.under_way()
    pair.d.asked()
    pair.push(ok=False)
    pair.carry()

    assert pair.decode.take_results() == ({"d-a"}, {"d-a"})
    assert pair.d.asked() == [("waker.wake",), ("engines.want", 0)]
    report = pair.decode.take_report()
    assert report is not None
    assert (report.failed, report.closed) == ({"d-a": "a push failed"}, [])

    pair.decode.on_tick()
    assert ("engines.fence", "e0") in pair.d.asked()
    pair.d.told("engines", "fenced", "e0")
    assert pair.d.asked() == [("waker.wake",), ("engines.want", 0)]
    assert pair.decode.take_report() == DecodeReport(closed=["d-a"])
    assert pair.decode.snapshot()["totals"] == totals(failed=1, fences=1)


def totals(**counts: int) -> dict[str, int]:
    names = ("loaded", "failed", "cancelled", "fences", "verified", "mismatched", "unverifiable")
    return dict.fromkeys(names, 0) | counts


def test_what_was_received_is_told_once_with_its_milestones(pair: Pair) -> None:
    """It is asked for at each step."""
    pair.meet()
    pair.clock.now_s = 1010.0
    pair.reserve("a", 16, [7])
    pair.decode.on_disconnect(("dial", pair.prefill.address))
    pair.clock.now_s = 1020.0
    pair.compute("a", tokens=16, blocks=[1], ready=1)
    pair.carry()
    pair.d.asked()
    pair.push()
    pair.clock.now_s = 1030.0
    pair.carry()

    assert pair.d.asked() == [("waker.wake",)]
    assert pair.decode.take_results() == ({"d-a"}, set())
    assert pair.decode.take_results() == (set(), set())
    timings = {
        "reserved": 0.0,
        "scheduled": 0.0,
        "first_layer": 0.0,
        "last_layer": 0.0,
        "first_push": 0.0,
        "last_push": 1.0,
        "commit": 1.0,
    }
    assert pair.decode.take_report() == DecodeReport(
        started={"a"}, closed=["d-a"], endings={"d-a": Ending(1030.0, 1010.0, True, timings, 1.0, 0)}
    )
    assert pair.decode.take_report() is None
    assert pair.decode.snapshot()["totals"] == totals(loaded=1)


def test_a_request_that_was_not_reserved_ends_without_vllm_waiting_for_it(pair: Pair) -> None:
    """It has asked for no receive."""
    pair.meet()
    pair.d.asked()

    pair.decode.cancel(["a"])

    assert pair.decode.take_results() == (set(), set())
    assert pair.d.asked() == [("waker.wake",)]
    assert pair.decode.take_report() == DecodeReport(
        failed={"d-a": "cancelled"}, endings={"d-a": Ending(1000.0, None, False, {}, 0.0, 0)}
    )
    assert pair.decode.snapshot()["totals"] == totals(cancelled=1)


def test_what_the_device_has_not_got_yet_is_told_when_it_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """I3, I4: neither the KV nor the block before; the engine is woken again then."""
    pair = arrived_on_a_device(tmp_path, monkeypatch)

    (woken, (what, arrived)) = pair.d.asked()
    assert (woken, what) == (("waker.wake",), "landing.hold")
    assert pair.decode.take_results() == (set(), set())
    assert pair.decode.take_report() == DecodeReport(started={"a"})

    pair.d.told("landing", "landed", arrived)
    assert pair.d.asked() == [("waker.wake",)]
    assert pair.decode.take_results() == ({"d-a"}, set())
    report = pair.decode.take_report()
    assert report is not None
    assert report.closed == ["d-a"]


def test_what_the_device_lost_is_recomputed_in_other_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Writes may still be queued there."""
    pair = arrived_on_a_device(tmp_path, monkeypatch)

    *_, (_, arrived) = pair.d.asked()
    pair.d.told("landing", "lost", arrived, "the device failed")

    assert pair.decode.take_results() == ({"d-a"}, {"d-a"})
    report = pair.decode.take_report()
    assert report is not None
    assert (report.failed, report.closed) == ({"d-a": "the device failed"}, [])
    assert (report.endings["d-a"].committed, report.first_tokens) == (False, {})


VERDICTS = {
    "verified": (b"digest p" * 4, ""),
    "mismatched": (
        b"digest p" * 3 + b"digest d",
        "the KV that arrived is not the KV that was sent: layer.3 in blocks 7",
    ),
    "unverifiable": (b"", "the digests could not be computed"),
}


@pytest.mark.parametrize("result", VERDICTS)
def test_verified_kv_is_used_and_any_other_recomputed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, result: str
) -> None:
    """P hears of a mismatch alone, and what verifying takes is not P's: the commit counts when it came."""
    digests, problem = VERDICTS[result]
    pair = verified(tmp_path, monkeypatch)
    assert pair.decode.take_results() == (set(), set())
    pair.clock.now_s += 5

    compare(pair, digests)

    assert pair.decode.take_results() == ({"d-a"}, {"d-a"} if problem else set())
    report = pair.decode.take_report()
    assert report is not None
    assert (report.failed, report.closed) == ({"d-a": problem} if problem else {}, ["d-a"])
    assert report.endings["d-a"].at_s == 1001.0
    assert pair.decode.snapshot()["totals"] == totals(**{result: 1, "failed" if problem else "loaded": 1})
    revoke = Revoke(transfer_id="a", epoch=1, mismatch=problem)
    assert pair.d.sent() == ([revoke] if result == "mismatched" else [])
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == (
        [f"transfer a of tcp://127.0.0.1:7: {problem}"] if problem else []
    )


def test_a_comparison_that_is_not_waited_for_counts_for_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The request was cancelled, and its block may have been another's when it was read."""
    pair = verified(tmp_path, monkeypatch)
    pair.decode.cancel(["a"])

    compare(pair, b"other")

    assert pair.decode.snapshot()["totals"] == totals(cancelled=1)
    assert caplog.messages == []


def test_digests_that_the_device_lost_are_not_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The request recomputes."""
    pair = Pair(tmp_path, monkeypatch, kv_verify="full", decode_device=object())
    pair.under_way()
    pair.push()
    (_, transfer, _), *_ = [each for each in pair.p.asked() if each[0] == "digests.ask"]
    pair.p.made["digests"].args[1](transfer, b"digest p" * 4)
    pair.d.asked()
    pair.carry()
    arrived = pair.d.asked()[-1][1]

    pair.d.told("landing", "lost", arrived, "the device failed")

    assert pair.decode.take_results() == ({"d-a"}, {"d-a"})
    report = pair.decode.take_report()
    assert report is not None
    assert report.failed == {"d-a": "the device failed"}


def test_a_message_for_which_there_is_no_session_is_counted(pair: Pair) -> None:
    """It may come from a peer that was forgotten."""
    fail = Fail(transfer_id="a", epoch=1, dirty=False, reason="")

    pair.decode.on_payload(("dial", "tcp://elsewhere:1"), encode(Message(11, 22, 1, fail)))
    pair.decode.on_payload(("dial", "tcp://elsewhere:1"), b"rubbish")

    assert pair.decode.snapshot()["refused"] == {"malformed": 1, "stranger": 1}


def test_a_peer_that_is_given_up_is_hung_up_on(pair: Pair) -> None:
    """The next request dials again."""
    pair.meet()
    pair.clock.now_s += 60
    pair.d.asked()

    pair.decode.on_tick()

    assert ("loop.forget", ("dial", pair.prefill.address)) in pair.d.asked()


def test_a_snapshot_tells_of_transfers_sessions_and_engines(pair: Pair) -> None:
    """As the node API shows them."""
    pair.under_way()
    pair.clock.now_s += 1.23456

    assert pair.decode.snapshot() == {
        "control_address": "",
        "transfers": [
            {
                "transfer_id": "a",
                "state": "reserved",
                "age_s": 1.235,
                "epoch": 1,
                "blocks": 1,
                "peer": "tcp://127.0.0.1:7",
            }
        ],
        "open_transfers": 1,
        "sessions": [{"peer": "tcp://127.0.0.1:7", "state": "open", "reason": "", "silent_s": 1.235}],
        "engines": {"current": ["e0"], "retired": []},
        "quarantined_blocks": 0,
        "totals": totals(),
        "refused": {},
    }
