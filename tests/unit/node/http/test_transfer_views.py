"""What a node says of its transfers: in a list, as a trace, and one of them alone."""

import json
import time
from typing import Any

import pytest

from baton.contracts.http import INTEGRITY_PATH, TIMELINE_PATH, TRACE_PATH, TRANSFERS_PATH
from baton.kv_connector.telemetry.refusals import Refused
from baton.node.connector.connector_channel import Snapshots
from baton.node.http.api import merge
from tests.support.asgi import Exchange
from tests.unit.node.http.fake_connector import WORKER, FakeConnector, ask, node_api


@pytest.mark.parametrize(
    "path", [TRANSFERS_PATH, TRACE_PATH, INTEGRITY_PATH, f"{TIMELINE_PATH}?transfer_id={'ab' * 16}"]
)
async def test_what_a_silent_connector_would_know_is_unavailable(path: str) -> None:
    """There is nothing to make up: one that has not been checked has no clean bill."""
    exchange = await ask(node_api(FakeConnector()), path)

    assert exchange.status == 503
    assert json.loads(exchange.body)["error"]["message"] == "no snapshot"


def test_both_sides_of_a_transfer_are_joined() -> None:
    scheduler = {"transfers": [{"transfer_id": "a", "state": "held"}, {"transfer_id": "b", "blocks_held": 2}]}
    worker = {
        "transfers": [{"transfer_id": "a", "state": "pushing"}, {"transfer_id": "c", "epoch": 1}],
        "totals": {},
        "regions": [],
    }

    assert merge(Snapshots(scheduler, worker)) == {
        "transfers": [
            {"transfer_id": "a", "scheduler": {"state": "held"}, "worker": {"state": "pushing"}},
            {"transfer_id": "b", "scheduler": {"blocks_held": 2}},
            {"transfer_id": "c", "worker": {"epoch": 1}},
        ],
        "scheduler": {},
        "worker": {"totals": {}},
    }


def test_a_transfer_of_several_flows_has_all_of_them() -> None:
    """Between nodes of several ranks."""
    flows = [{"flow": "0-1", "state": "pushing"}, {"flow": "1-1", "state": "committed"}]
    worker = {"transfers": [{"transfer_id": "a", **flow} for flow in flows]}

    assert merge(Snapshots({"transfers": [{"transfer_id": "a", "state": "held"}]}, worker))["transfers"] == [
        {"transfer_id": "a", "scheduler": {"state": "held"}, "flows": flows}
    ]


RECORDS = [
    {
        "transfer_id": identity,
        "scheduled_at_s": 100.0,
        "timings_s": {"scheduled": 0.0, "last_layer": 1.0, "commit": 1.25},
    }
    for identity in ("a", "b")
]


async def trace(query: str, worker: dict[str, Any] | None = None) -> Exchange:
    """Ask a prefill node that remembers transfers a and b."""
    return await ask(node_api(FakeConnector(worker or {**WORKER, "recent": RECORDS})), f"{TRACE_PATH}?{query}")


@pytest.mark.parametrize(
    ("query", "shown"), [("", {"a", "b"}), ("transfer_id=b", {"b"}), ("transfer_id=a&transfer_id=b", {"a", "b"})]
)
async def test_the_trace_shows_the_last_transfers_or_those_asked_for(query: str, shown: set[str]) -> None:
    """As a plain list of events: those of several nodes, joined, are one trace."""
    exchange = await trace(query)

    events = json.loads(exchange.body)
    assert exchange.status == 200
    assert {event["args"]["transfer_id"] for event in events if event["ph"] == "X"} == shown
    assert {event["pid"] for event in events} == {0xFF}
    assert events[0]["args"]["name"].startswith("prefill node 10.0.0.5:8100")
    now_us = time.time() * 1e6
    began_us = min(event["ts"] for event in events if event["ph"] == "X")
    assert began_us == pytest.approx(now_us - (time.monotonic() - 100.0) * 1e6, abs=5e6)  # wall clock


async def test_a_transfer_that_is_not_remembered_has_no_trace() -> None:
    """It would look like a transfer without milestones. A node that has done nothing is named all the same."""
    assert (await trace("transfer_id=c")).status == 404
    assert [event["ph"] for event in json.loads((await trace("", WORKER)).body)] == ["M"]


async def test_a_decode_nodes_records_come_from_its_scheduler() -> None:
    """Only there all milestones come together."""
    record = {"transfer_id": "a", "arrived_at_s": 5.0, "timings_s": {"arrived": 0.0, "reserved": 0.5}}
    api = node_api(FakeConnector(WORKER, {"recent": [record]}), role="decode")

    exchange = await ask(api, TRACE_PATH)

    assert [event["name"] for event in json.loads(exchange.body) if event["ph"] == "X"] == ["allocation"]


async def test_refusals_of_all_parts_are_added_up() -> None:
    worker = WORKER | {"refused": {"malformed": 2, "bad_signature": 1}}
    api = node_api(FakeConnector(worker, {"refused": {"bad_signature": 3}}))
    api._refusals.count(Refused.BAD_TOKEN, "")

    content = json.loads((await ask(api, TRANSFERS_PATH)).body)

    assert content["refused"] == {"bad_token": 1, "bad_signature": 4, "malformed": 2}
    assert content["worker"]["refused"] == worker["refused"]


async def test_a_node_that_sends_and_receives_has_a_trace_of_either_side() -> None:
    """Each with a process of its own."""
    record = {"transfer_id": "c", "arrived_at_s": 5.0, "timings_s": {"arrived": 0.0, "reserved": 0.5}}
    scheduler = {"reverse": {"recent": [record]}}
    api = node_api(FakeConnector({**WORKER, "recent": RECORDS, "reverse": {}}, scheduler))

    events = json.loads((await ask(api, TRACE_PATH)).body)

    titles = {
        event["pid"]: event["args"]["name"].partition(" (")[0] for event in events if event["name"] == "process_name"
    }
    assert titles == {0xFF: "prefill node 10.0.0.5:8100", 0xFE: "prefill node 10.0.0.5:8100 as a decode node"}
    assert {(event["pid"], event["args"]["transfer_id"]) for event in events if event["ph"] == "X"} == {
        (0xFF, "a"),
        (0xFF, "b"),
        (0xFE, "c"),
    }


WANTED, OTHER = "ab" * 16, "cd" * 16


async def test_one_transfer_is_told_of() -> None:
    """What either side says of it, open or ended, flow by flow, and nothing of others."""
    worker = WORKER | {
        "transfers": [{"transfer_id": WANTED, "state": "pushing"}, {"transfer_id": OTHER, "state": "pushing"}],
        "recent": [{"transfer_id": f"{WANTED}/0-1", "state": "committed"}, {"transfer_id": OTHER}],
    }
    got = await ask(node_api(FakeConnector(worker)), f"{TIMELINE_PATH}?transfer_id={WANTED}")

    assert json.loads(got.body) == {
        "role": "prefill",
        "flows": [{"transfer_id": WANTED, "written": [[0.5, 0]]}],
        "open": [{"transfer_id": WANTED, "worker": {"state": "pushing"}}],
        "ended": [{"transfer_id": f"{WANTED}/0-1", "state": "committed"}],
    }


async def test_a_decode_node_has_no_layers_to_tell_of() -> None:
    """Its ranks are not asked for them."""
    got = await ask(node_api(FakeConnector(WORKER), "decode"), f"{TIMELINE_PATH}?transfer_id={WANTED}")

    assert (got.status, json.loads(got.body)["flows"], json.loads(got.body)["ended"]) == (200, [], [])


@pytest.mark.parametrize("query", ["", "?transfer_id=", "?transfer_id=../secret", "?transfer_id=%ff"])
async def test_a_timeline_is_asked_by_transfer_id(query: str) -> None:
    """Anything else is refused before the connector is asked."""
    got = await ask(node_api(FakeConnector(None)), TIMELINE_PATH + query)

    assert got.status == 400
    assert "transfer_id" in json.loads(got.body)["error"]["message"]


async def test_transfers_in_brief_are_none() -> None:
    """Totals and failures alone, for a client that asks every second."""
    worker = WORKER | {"transfers": [{"transfer_id": WANTED}], "recent": [{}], "failures": [{"reason": "x"}]}
    got = await ask(node_api(FakeConnector(worker, {"recent": [], "free_blocks": 3})), TRANSFERS_PATH + "?brief=1")

    assert got.status == 200
    assert "transfers" not in json.loads(got.body)
    assert "recent" not in json.loads(got.body)["worker"]
    assert json.loads(got.body)["worker"]["failures"] == [{"reason": "x"}]
    assert json.loads(got.body)["scheduler"] == {"free_blocks": 3}
