"""What a node says of itself, and what its integrity check finds."""

import json
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import pytest

from baton.contracts.http import INTEGRITY_PATH, NODE_PATH
from baton.contracts.kv_transfer import PROTOCOL_VERSION
from baton.node.errors import ConnectorFailedError
from baton.node.http.api import EngineFacts, NodeApi, engine_facts
from baton.node.http.asgi import Scope
from tests.unit.node.http.fake_connector import FINGERPRINT, REGION, SCHEDULER, WORKER, FakeConnector, ask, node_api


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
