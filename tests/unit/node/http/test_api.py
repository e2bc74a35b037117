import json
import logging
import time
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import msgspec
import pytest

from baton.contracts.http import INTEGRITY_PATH, NODE_PATH, TIMELINE_PATH, TRACE_PATH, TRANSFERS_PATH
from baton.contracts.kv_transfer import PROTOCOL_VERSION, Role
from baton.kv_connector.telemetry.refusals import Refusals, Refused
from baton.node.connector.connector_channel import ConnectorClient, Snapshots
from baton.node.errors import ConnectorFailedError, ConnectorSilentError, NodeError
from baton.node.http.api import EngineFacts, NodeApi, engine_facts, merge
from baton.node.http.asgi import Scope
from tests.support.asgi import Exchange, http
from tests.support.described import fingerprint

FINGERPRINT = msgspec.to_builtins(fingerprint(128))
REGION = {"name": "l0", "layer": 0, "base_addr": 4096, "block_bytes": 64, "stride_bytes": 64, "num_blocks": 9}
WORKER: dict[str, Any] = {
    "incarnation": "00ff",
    "fingerprint": FINGERPRINT,
    "regions": [REGION],
    "num_blocks": 9,
    "layer_sync": "event",
    "transfers": [],
    "totals": {"pushed_bytes": 1},
}
SCHEDULER: dict[str, Any] = {"engines": 1, "control_addresses": ["tcp://10.0.0.5:9100"]}


class FakeConnector:
    def __init__(self, worker: dict[str, Any] | None = None, scheduler: dict[str, Any] | None = None) -> None:
        self.worker = worker
        self.scheduler = SCHEDULER if scheduler is None else scheduler
        self.problem: NodeError = ConnectorSilentError("no snapshot")

    async def both(self) -> Snapshots:
        if self.worker is None:
            raise self.problem
        return Snapshots(self.scheduler, self.worker)

    async def flows(self, transfer_id: str) -> list[dict[str, Any]]:
        return [{"transfer_id": transfer_id, "written": [[0.5, 0]]}]

    async def integrity(self) -> dict[str, Any]:
        if self.worker is None:
            raise self.problem
        return {"ok": False, "findings": [{"blocks": ["2-3"]}]}


def node_api(connector: FakeConnector, role: Role = "prefill") -> NodeApi:
    refusals = Refusals(logging.getLogger(__name__))
    return NodeApi(role=role, model="/m", connector=cast("ConnectorClient", connector), refusals=refusals)


async def ask(api: NodeApi, path: str, method: str = "GET", app: object = None) -> Exchange:
    path, _, query = path.partition("?")
    scope = http(method, path)
    scope.update(app=app, query_string=query.encode(), server=("10.0.0.5", 8100))
    exchange = Exchange(scope)
    await api.answer(scope, exchange.receive, exchange.send)
    return exchange


async def describe(api: NodeApi, app: object = None) -> dict[str, Any]:
    exchange = await ask(api, NODE_PATH, app=app)
    assert exchange.status == 200
    return cast("dict[str, Any]", json.loads(exchange.body))


def vllm_app(served_model_name: list[str] | None, data_parallel_size: int = 4, **more: Any) -> Any:
    parallel = SimpleNamespace(tensor_parallel_size=2, pipeline_parallel_size=1, data_parallel_size=data_parallel_size)
    config = SimpleNamespace(parallel_config=parallel, model_config=SimpleNamespace(max_model_len=4096))
    arguments = SimpleNamespace(served_model_name=served_model_name, model="/m")
    return SimpleNamespace(state=SimpleNamespace(args=arguments, vllm_config=config), **more)


async def test_the_api_is_read_only() -> None:
    exchange = await ask(node_api(FakeConnector(WORKER)), NODE_PATH, method="POST")

    assert (exchange.status, exchange.headers["allow"]) == (405, "GET, HEAD")


async def test_a_ready_node_says_what_its_connector_says() -> None:
    """Keys that the description has no place for are left out."""
    info = await describe(node_api(FakeConnector(WORKER)))

    assert (info["role"], info["state"], info["model"]) == ("prefill", "ready", "/m")
    assert info["control_addresses"] == ["tcp://10.0.0.5:9100"]
    assert (info["fingerprint"], info["regions"]) == (FINGERPRINT, [REGION])
    assert (info["num_blocks"], info["incarnation"], info["layer_sync"]) == (9, "00ff", "event")
    assert info["versions"]["protocol"] == str(PROTOCOL_VERSION)
    assert "totals" not in info


async def test_a_node_starts_until_all_of_its_engines_are_there() -> None:
    """A request for the rank of an engine that has not announced itself would go astray."""
    two = vllm_app(["m"], data_parallel_size=2)

    early = await describe(node_api(FakeConnector(WORKER)), two)
    late = await describe(node_api(FakeConnector(WORKER, {"engines": 2, "control_addresses": ["a,b", "c,d"]})), two)

    assert (early["state"], late["state"]) == ("starting", "ready")
    assert late["control_addresses"] == ["a,b", "c,d"]


@pytest.mark.parametrize(
    ("scheduler", "said"),
    [
        ({"both_ways": False}, {"both_ways": False}),
        ({"both_ways": True}, {"both_ways": True}),
        ({"control_addresses": [""]}, {"control_addresses": []}),  # of a decode node
        ({}, {"first_tokens": ""}),
        ({"first_tokens": "a"}, {"first_tokens": "a--0"}),
    ],
)
async def test_what_the_scheduler_knows_is_said(scheduler: dict[str, Any], said: dict[str, Any]) -> None:
    info = await describe(node_api(FakeConnector(WORKER, SCHEDULER | scheduler)))

    assert info | said == info


async def test_a_node_starts_until_its_connector_knows_its_cache_and_may_recover() -> None:
    """Silence before the first answer is a start, afterwards it is silence; an answer without sense is a failure."""
    connector = FakeConnector()
    api = node_api(connector)
    states = []
    for worker in (None, {**WORKER, "fingerprint": None}, WORKER, None, {"odd": 1}, WORKER):
        connector.worker = worker
        states.append((await describe(api))["state"])

    assert states == ["starting", "starting", "ready", "silent", "failed", "ready"]


async def test_a_silent_engine_is_described_as_it_was_and_one_that_is_gone_is_not() -> None:
    """A proxy goes on pairing a node whose engine is stopped for a moment; what died has nothing to pair."""
    connector = FakeConnector(WORKER)
    api = node_api(connector)
    ready = await describe(api)
    connector.worker = None
    silent = await describe(api)
    connector.problem = ConnectorFailedError("its process is gone")
    failed = await describe(api)

    assert silent == ready | {"state": "silent"}
    assert (failed["state"], failed["fingerprint"], failed["control_addresses"]) == ("failed", None, [])


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


@pytest.mark.parametrize(("names", "served"), [(None, ["/m"]), (["a", "b"], ["a", "b"])])
async def test_what_vllm_knows_best_comes_from_vllm(names: list[str] | None, served: list[str]) -> None:
    """Names, greatest length and ranks are read after all flags and defaults."""
    info = await describe(node_api(FakeConnector(WORKER)), vllm_app(names))

    assert (info["served_models"], info["max_model_len_tokens"]) == (served, 4096)
    sizes = [info[f"{kind}_parallel_size"] for kind in ("tensor", "pipeline", "data")]
    assert sizes == [2, 1, 4]


async def test_adapters_loaded_at_run_time_and_routes_are_named() -> None:
    """The proxy knows no other models; of each route once, whatever its methods. What has no path is no route."""
    route, other = SimpleNamespace(path="/tokenize"), SimpleNamespace(path="/v1/embeddings")
    app = vllm_app(["a"], routes=[other, route, route, SimpleNamespace()])
    loaded = {"poet": SimpleNamespace(lora_path="/poet", base_model_name=None)}
    app.state.openai_serving_models = SimpleNamespace(lora_requests=loaded)
    said = await describe(node_api(FakeConnector(WORKER)), app)

    assert said["served_models"] == ["a", "poet"]
    assert said["adapters"] == [{"name": "poet", "root": "/poet", "parent": "a"}]
    assert said["routes"] == ["/tokenize", "/v1/embeddings"]


@pytest.mark.parametrize(
    "scope",
    [
        {},
        {"app": None},
        *({"app": SimpleNamespace(state=SimpleNamespace(**state))} for state in ({}, {"args": Mock()})),
    ],
)
def test_an_application_without_state_gives_defaults(scope: Scope) -> None:
    """Another version of vLLM may keep it elsewhere; the node still answers."""
    assert engine_facts(scope) == EngineFacts()


async def test_what_the_integrity_check_finds_is_passed_on() -> None:
    """With status 200 whether or not something was found: the node answered."""
    exchange = await ask(node_api(FakeConnector(WORKER)), INTEGRITY_PATH)

    assert exchange.status == 200
    assert json.loads(exchange.body) == {"ok": False, "findings": [{"blocks": ["2-3"]}]}


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
