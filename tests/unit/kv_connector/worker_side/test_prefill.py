"""What a prefill rank passes on, and when: its parts are replaced, and a test carries the messages."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from baton.contracts.configuration.schema import TransferConfig
from baton.contracts.kv_transfer import Grid, Grids
from baton.kv_connector.config import ConnectorConfig
from baton.kv_connector.handoff.metadata import PrefillStep, StartedPrompt
from baton.kv_connector.protocol.messages import (
    Beat,
    Hello,
    Message,
    Rank,
    Revoke,
    Started,
    encode,
)
from baton.kv_connector.worker_side.prefill import PrefillWorker
from baton.kv_connector.worker_side.rank_descriptor import RankDescriptor
from baton.kv_connector.worker_side.sync import HOST_STREAM
from tests.support.ranks import FINGERPRINT, SECRET
from tests.unit.kv_connector.worker_side.parts import DIALLER, PROMPT, Pair, commit, fail

OTHER: Any = ("accept", b"other")


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pair:
    return Pair(tmp_path, monkeypatch)


def test_a_rank_hears_its_peers_when_everything_else_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own thread is the last to start, and each is stopped; its engines are closed."""
    closed: list[str] = []

    def engines(_: object, host: str) -> Any:
        return SimpleNamespace(sender=lambda spans: spans, close=lambda: closed.append(host))

    pair = Pair(tmp_path, monkeypatch, engines=engines)
    assert pair.p.made["loop"].listened == ("127.0.0.1", 0, SECRET)
    pair.prefill.start()
    assert pair.p.asked() == [("sender.start",), ("digests.start",), ("loop.start",)]

    pair.prefill.stop()
    assert sorted(pair.p.asked()) == [("digests.stop",), ("loop.stop",), ("outcomes.close",), ("sender.stop",)]
    assert closed == ["p"]
    assert pair.prefill.address == "tcp://127.0.0.1:7"


def test_a_rank_listens_at_its_own_port(pair: Pair, tmp_path: Path) -> None:
    """A node's are numbered on: here the second of two ranks of the third engine."""
    config = ConnectorConfig(
        runtime_dir=tmp_path,
        secret_file=tmp_path / "secret",
        weights="w",
        transfer=TransferConfig(),
        control_port=9000,
        engine=2,
    )
    rank = RankDescriptor("P", "prefill", Rank(tp=1, tp_size=2), FINGERPRINT, pair.source.caches)

    PrefillWorker(
        config=config,
        secret=SECRET,
        introduction=rank,
        engines=pair.fabric.factory(),
        incarnation=11,
        stream=HOST_STREAM,
        digests=pair.source.digests,
    )

    assert pair.p.made["loop"].listened == ("127.0.0.1", 9005, SECRET)


def test_a_message_is_answered_at_once_and_may_set_a_push_going(pair: Pair) -> None:
    """The sender sleeps; the node hears of a reservation once."""
    pair.watch("a")
    [(_, hello)] = pair.d.mail()
    pair.prefill.on_payload(DIALLER, hello)
    [answer] = pair.p.sent()
    assert isinstance(answer, Hello)
    assert pair.p.asked() == [("sender.wake",)]
    pair.carry()

    pair.d.told("engines", "added", 0, "e0")
    pair.reserve("a", 16, [7])
    pair.p.asked()
    pair.carry()
    assert pair.p.asked() == [("sender.wake",), ("outcomes.send_reserved", "a")]

    pair.decode.cancel(["a"])
    [(_, revoke)] = pair.d.mail()
    pair.prefill.on_payload(DIALLER, revoke)
    assert pair.p.sent() == [fail("revoked")]
    assert pair.p.asked() == [("sender.wake",)]


def test_a_transfer_that_is_revoked_before_it_is_reserved_counts_as_heard_of(pair: Pair) -> None:
    """D needs nothing of it: the first token must not wait. What P knows nothing of is not told."""
    pair.meet()
    pair.p.asked()

    pair.decode.cancel(["a"])
    pair.carry()
    pair.prefill.on_payload(DIALLER, encode(Message(22, 11, 1_000, Revoke(transfer_id="b", epoch=0))))

    assert [each for each in pair.p.asked() if each[0] != "sender.wake"] == [("outcomes.send_reserved", "a")]


def test_what_cannot_be_read_or_is_said_for_another_is_counted(pair: Pair) -> None:
    """And moves nothing."""
    pair.meet()
    pair.p.asked()

    pair.prefill.on_payload(OTHER, b"rubbish")
    pair.prefill.on_payload(DIALLER, encode(Message(23, 11, 1_000, Beat(open=[]))))

    assert (pair.p.sent(), pair.p.asked()) == ([], [])
    assert pair.prefill.snapshot()["refused"] == {"malformed": 1, "second_sender": 1}


def test_a_tick_lets_go_of_what_is_not_asked_for(pair: Pair) -> None:
    """I5: of a prompt that D watches and never reserves, and of layers that the device does not get to."""
    pair.meet()
    pair.prefill.begin_step(PrefillStep(started=[StartedPrompt("a", "p-a", PROMPT)], holds=["p-a"]))
    pair.carry()
    pair.clock.now_s += 31
    pair.prefill.on_payload(DIALLER, encode(Message(22, 11, 1_000, Revoke(transfer_id="x", epoch=0))))
    pair.p.mail()
    pair.p.asked()

    pair.prefill.on_tick()

    assert pair.p.sent() == [fail("no decode node asked for this prompt", 0)]
    assert pair.p.asked() == [("sender.give_up", 1031.0)]


def test_a_peer_that_fell_silent_costs_its_transfers_at_the_next_tick(pair: Pair) -> None:
    """Their blocks come back."""
    pair.under_way()
    pair.prefill.begin_step(PrefillStep(holds=["p-a"]))
    pair.clock.now_s += 4

    pair.prefill.on_tick()

    assert pair.prefill.take_released() == {"p-a"}
    snapshot = pair.prefill.snapshot()
    assert (snapshot["open_transfers"], snapshot["totals"]["failed"]) == (0, 1)


@pytest.mark.parametrize(("named", "open_"), [(["a"], 1), (["group"], 1), (["unknown"], 0), (["unknown", "a"], 1)])
def test_a_cancel_ends_the_transfers_of_a_request(pair: Pair, named: list[str], open_: int) -> None:
    """By a transfer's own id or that of all prompts of a request; D hears at once."""
    pair.meet()
    pair.prefill.begin_step(PrefillStep(started=[StartedPrompt("a", "p-a", PROMPT, group="group")]))
    pair.carry()

    assert pair.prefill.cancel(named) == open_

    assert pair.p.sent() == [fail("cancelled by the proxy", 0)] * open_


def test_a_prompt_of_a_cancelled_request_ends_when_it_starts(pair: Pair) -> None:
    """The proxy has named the request, and this prompt had not been scheduled."""
    pair.meet()
    pair.prefill.cancel(["group"])
    pair.prefill.begin_step(PrefillStep(started=[StartedPrompt("a", "p-a", PROMPT, group="group")]))

    assert pair.p.sent() == [Started(transfer_id="a", tokens=16), fail("cancelled by the proxy", 0)]


def test_a_transfer_that_has_ended_leaves_its_group(pair: Pair) -> None:
    """A cancel that names the group later finds nothing to end."""
    pair.meet()
    pair.prefill.begin_step(PrefillStep(started=[StartedPrompt("a", "p-a", PROMPT, group="group")]))
    pair.prefill.cancel(["a"])

    assert pair.prefill._groups.cancel("group") == ["group"]


def test_a_transfer_is_in_its_group_until_all_of_its_flows_have_ended(pair: Pair) -> None:
    """One of two decode ranks has let go; a cancel ends what the other still waits for."""
    pair.meet()
    started = StartedPrompt("b", "p-b", PROMPT, group="group", grids=Grids(decode=Grid(tp=2)))
    pair.prefill.begin_step(PrefillStep(started=[started]))
    pair.prefill.on_payload(DIALLER, encode(Message(22, 11, 1_000, Revoke(transfer_id="b/0-0", epoch=0))))

    assert pair.prefill.cancel(["group"]) == 1
    assert pair.prefill.cancel(["group"]) == 0


def test_a_verified_transfer_is_committed_when_its_digests_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A report that it arrived otherwise is counted, with the blocks that were read."""
    pair = Pair(tmp_path, monkeypatch, kv_verify="full")
    pair.under_way()
    pair.p.asked()
    pair.push()
    assert pair.p.sent() == []
    [(what, transfer, [part])] = pair.p.asked()
    assert (what, part) == ("digests.ask", ([1], [0, 1, 2, 3]))

    pair.p.made["digests"].args[1](transfer, b"digests!" * 4)
    timings = {**commit().timings_s, "digested": 1.0}
    assert pair.p.sent() == [commit(timings_s=timings, digests=b"digests!" * 4)]

    pair.p.mail()
    pair.prefill.on_payload(
        DIALLER, encode(Message(22, 11, 1_000, Revoke(transfer_id="a", epoch=1, mismatch="layer.3")))
    )
    snapshot = pair.prefill.snapshot()
    assert snapshot["totals"]["mismatched"] == 1
    assert snapshot["failures"] == [{"transfer_id": "a", "state": "mismatched", "reason": "layer.3"}]
    assert caplog.messages == [
        "transfer a did not arrive at 0000000000000016 as it was sent from blocks [1]: layer.3",
    ]


def test_a_snapshot_tells_of_transfers_and_sessions(pair: Pair) -> None:
    """As the node API shows them; what has ended is told as it was when it ended."""
    pair.under_way()
    pair.clock.now_s += 1.23456
    pair.watch("b")
    pair.carry()
    open_ = {"age_s": 1.235, "epoch": 1, "bytes_expected": 1024, "bytes_pushed": 0, "peer": "0000000000000016"}
    watched = {"age_s": 0.0, "epoch": 0, "bytes_expected": 0, "bytes_pushed": 0, "peer": "0000000000000016"}
    found = pair.prefill.snapshot()
    assert {name: found[name] for name in ("control_address", "transfers", "open_transfers", "sessions")} == {
        "control_address": "tcp://127.0.0.1:7",
        "transfers": [
            {"transfer_id": "a", "state": "pushing", **open_},
            {"transfer_id": "b", "state": "waiting for the other side", **watched},
        ],
        "open_transfers": 2,
        "sessions": [{"peer": "0000000000000016", "state": "open", "reason": ""}],
    }
    assert (found["refused"], found["totals"]["pushes"]) == ({}, 3)

    pair.push()
    pair.clock.now_s += 60
    [record] = pair.prefill.snapshot()["recent"]
    assert record.items() >= ({"transfer_id": "a", "state": "committed"} | open_).items() - {
        ("age_s", 1.235),
        ("bytes_pushed", 0),
    }
    assert (record["age_s"], record["bytes_pushed"]) == (2.235, 1024)


def test_a_timeline_is_kept_when_its_transfer_has_ended(pair: Pair) -> None:
    """As the node API shows it."""
    pair.under_way()
    [flow] = pair.prefill.timeline("a")["flows"]
    assert (flow["open"], flow["pushes"], flow["layers"], flow["tokens"]) == (True, [], 4, 16)

    pair.push()

    [flow] = pair.prefill.timeline("a")["flows"]
    assert (flow["open"], flow["pushes"], flow["pushing_s"]) == (False, [[0.0, 1.0, 0, 3, 4]], 1.0)
    assert flow["written"] == [[0.0, layer] for layer in range(4)]
    assert pair.prefill.timeline("b") == {"flows": []}


def test_the_senders_bounds_are_the_configured_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And what it shares with the rank is the same for both."""
    pair = Pair(tmp_path, monkeypatch, push_max_bytes=1 << 20, push_max_descriptors=77, transfer_timeout_s=9.0)
    made = pair.p.made["sender"].kwargs

    assert (made["max_bytes"], made["max_descriptors"], made["patience_s"]) == (1 << 20, 77, 9.0)
    assert pair.d.made["zeroing"].kwargs["patience_s"] == 9.0
