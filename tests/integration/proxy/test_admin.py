"""The admin API on real sockets: members come and go while requests run."""

import asyncio
import json
from typing import Any

import pytest

from baton.contracts.kv_transfer import Role
from tests.integration.proxy.test_models import OTHER, two_models
from tests.support.cluster import ADMIN_TOKEN, Cluster, cluster, until_true
from tests.support.fake_answers import MODEL
from tests.support.fake_vllm import Fabric, FakeVllm

NODES = "/admin/nodes"
ROUTES = [
    ("GET", NODES),
    ("POST", NODES),
    ("DELETE", NODES),
    ("POST", f"{NODES}/drain"),
    ("POST", f"{NODES}/evacuate"),
    ("POST", f"{NODES}/role"),
    ("GET", "/admin/state"),
    ("POST", "/v1/load_lora_adapter"),
    ("POST", "/v1/unload_lora_adapter"),
    ("POST", "/reset_prefix_cache"),
]


async def views(running: Cluster) -> dict[str, dict[str, Any]]:
    """Return the members as the admin API shows them, by URL."""
    nodes = (await running.admin("GET", NODES)).json()["nodes"]
    return {node["url"]: node for node in nodes}


async def until_ready(running: Cluster, node: FakeVllm) -> None:
    """Wait until a node is in use."""

    async def is_ready() -> bool:
        return bool((await views(running))[node.url]["state"] == "ready")

    await until_true(is_ready)


async def test_every_route_needs_the_token() -> None:
    """Neither another token nor the nodes' one will do; the body is not even read."""
    async with cluster() as running:
        got = [
            await running.http.request(method, path, headers=headers, content=b"{")
            for method, path in ROUTES
            for headers in ({}, {"authorization": "Bearer x"}, {"authorization": f"Basic {ADMIN_TOKEN}"})
        ]

    assert {each.status_code for each in got} == {401}
    assert {each.json()["error"]["type"] for each in got} == {"authentication_error"}
    assert got[0].headers["www-authenticate"] == "Bearer"


async def test_without_a_token_file_the_admin_api_is_off() -> None:
    """The answer says which setting is missing."""
    async with cluster(admin_token=None) as running:
        got = [await running.admin(method, path) for method, path in ROUTES]

    assert {each.status_code for each in got} == {403}
    assert all("proxy.admin_token_file is not set" in each.json()["error"]["message"] for each in got)


async def test_a_node_joins_and_leaves_at_run_time() -> None:
    """It gets work when it is ready, and none when it has left."""
    async with cluster() as running:
        node = FakeVllm("decode", running.fabric)
        await node.start()
        added = await running.admin("POST", NODES, json={"url": node.url + "/", "role": "decode"})
        again = await running.admin("POST", NODES, json={"url": node.url, "role": "decode"})
        await until_ready(running, node)
        first = [await running.complete() for _ in range(4)]
        removed = await running.admin("DELETE", NODES, params={"url": node.url})
        seen = len(node.seen)
        second = [await running.complete() for _ in range(4)]
        members = await views(running)
        await node.stop()

    assert (added.status_code, again.status_code, removed.status_code) == (201, 200, 200)
    assert (added.json()["url"], added.json()["slot"], added.json()["role"]) == (node.url, 2, "decode")
    assert {each.status_code for each in (*first, *second)} == {200}
    assert seen == len(node.seen) == 2
    assert node.url not in members


async def test_a_node_is_drained_and_taken_back() -> None:
    """It stays a member, with its state, and gets nothing; with all decode nodes drained every request is refused."""
    async with cluster(decode=2) as running:
        node, other = running.decode
        drained = await running.admin("POST", f"{NODES}/drain", json={"url": node.url})
        without = [await running.complete() for _ in range(4)]
        seen = len(node.seen)
        ready = (await running.http.get("/ready")).json()
        await running.admin("POST", f"{NODES}/drain", json={"url": other.url})
        not_ready, refused = await running.http.get("/ready"), await running.complete()
        for each in (node, other):
            await running.admin("POST", f"{NODES}/drain", json={"url": each.url, "draining": False})
        again = [await running.complete() for _ in range(4)]

    assert drained.json()["nodes"][0]["state"] == "draining"
    assert {each.status_code for each in (*without, *again)} == {200}
    assert (seen, len(node.seen)) == (0, 2)
    assert [each["state"] for each in ready["nodes"] if each["url"] == node.url] == ["draining"]
    assert (not_ready.status_code, not_ready.json()["reasons"]) == (503, ["no decode node is ready"])
    assert refused.status_code == 503


WRONG_CALLS: list[tuple[str, str, dict[str, Any] | None, int, str]] = [
    ("POST", NODES, {"url": "http://n"}, 400, "body.role"),
    ("POST", NODES, {"url": "http://n", "role": "both"}, 400, "body.role"),
    ("POST", NODES, {"url": "n:8100", "role": "decode"}, 400, "not of the form"),
    ("POST", NODES, {"url": "http://n:8100/v1", "role": "decode"}, 400, "not of the form"),
    ("POST", NODES, {"url": "http://user:secret@n:8100", "role": "decode"}, 400, "not of the form"),
    ("POST", NODES, None, 400, "body"),
    ("DELETE", NODES, None, 400, "query.url"),
    ("DELETE", f"{NODES}?url=http://nobody", None, 404, "no member"),
    ("POST", f"{NODES}/drain", {"url": "http://nobody"}, 404, "no member"),
]


async def test_wrong_calls_are_refused_in_openais_shape() -> None:
    """The message says what is wrong, and nothing changes. A URL has one role, since it is one process."""
    async with cluster() as running:
        before = await views(running)
        twice = ("POST", NODES, {"url": running.prefill[0].url, "role": "decode"}, 409, "is a prefill node already")
        no_streams = ("POST", f"{NODES}/evacuate", {"url": running.prefill[0].url}, 400, "is no decode node")
        for method, path, body, status, words in (*WRONG_CALLS, twice, no_streams):
            got = await running.admin(method, path, json=body)
            assert got.status_code == status
            assert set(got.json()["error"]) == {"message", "type", "param", "code"}
            assert words in got.json()["error"]["message"]
        assert (await views(running)).keys() == before.keys()


async def test_a_call_goes_to_every_node_as_it_came() -> None:
    """Both roles need the same adapters: what one node computes the other goes on with."""
    adapter = {"lora_name": "poet", "lora_path": "/adapters/poet"}
    async with cluster(prefill=2, decode=2) as running:
        loaded = await running.admin("POST", "/v1/load_lora_adapter", json=adapter)
        unloaded = await running.admin("POST", "/v1/unload_lora_adapter", json=adapter)
        emptied = await running.admin("POST", "/reset_prefix_cache?reset_external=true")
        nodes = [*running.prefill, *running.decode]

    assert [each.status_code for each in (loaded, unloaded, emptied)] == [200] * 3
    assert [(each["url"], each["ok"]) for each in loaded.json()["nodes"]] == [(node.url, True) for node in nodes]
    for node in nodes:
        assert [(path, query) for path, query, _ in node.operated] == [
            ("/v1/load_lora_adapter", ""),
            ("/v1/unload_lora_adapter", ""),
            ("/reset_prefix_cache", "reset_external=true"),
        ]
        assert [json.loads(body) if body else None for _, _, body in node.operated] == [adapter, adapter, None]


async def test_an_adapter_goes_to_the_nodes_of_its_base_model_alone() -> None:
    """It is refused where it is not clear which that is, in OpenAI's shape, and no node is asked then."""
    adapter = {"lora_name": "poet", "lora_path": "/adapters/poet"}
    async with two_models() as running:
        unclear = await running.admin("POST", "/v1/load_lora_adapter", json=adapter)
        unknown = await running.admin("POST", "/v1/load_lora_adapter", json=adapter | {"base_model_name": "none"})
        malformed = await running.admin("POST", "/v1/load_lora_adapter", content=b"[]")
        asked = [len(node.operated) for node in (*running.prefill, *running.decode)]
        loaded = await running.admin("POST", "/v1/load_lora_adapter", json=adapter | {"base_model_name": OTHER})
        for nodes in (running.prefill, running.decode):
            nodes[1].change(served_models=[OTHER, "poet"])
        taken = await running.admin("POST", "/v1/load_lora_adapter", json=adapter | {"base_model_name": MODEL})
        emptied = await running.admin("POST", "/reset_prefix_cache", params={"base_model_name": MODEL})
        operated = [[path for path, _, _ in node.operated] for node in (*running.prefill, *running.decode)]

    assert [each.status_code for each in (unclear, unknown, malformed, loaded, taken, emptied)] == [
        *(400, 404, 400, 200, 400, 200)
    ]
    error = unclear.json()["error"]
    assert (error["type"], error["param"], error["code"]) == ("BadRequestError", "base_model_name", 400)
    assert asked == [0, 0, 0, 0]
    assert operated == [["/reset_prefix_cache"], ["/v1/load_lora_adapter"]] * 2


async def test_nodes_that_did_not_do_it_are_named() -> None:
    """One that refuses, one that is gone, and one that has not said what it serves: it may have another base model."""
    unknown = "http://127.0.0.1:9"
    async with cluster(prefill=2, decode=2, also={"decode": (unknown,)}, ready=False) as running:
        refusing, gone = running.prefill[0], running.decode[1]
        for node in (*running.prefill, *running.decode):
            await until_ready(running, node)
        refusing.fault = "status"
        await gone.stop()
        got = await running.admin("POST", "/v1/load_lora_adapter", json={"lora_name": "poet"})

    body = got.json()
    assert (got.status_code, body["error"]["type"]) == (502, "upstream_error")
    assert body["error"]["message"] == (
        f"3 of 5 nodes did not do it: prefill node {refusing.url} (400), decode node {gone.url} (it cannot be reached), "
        f"decode node {unknown} (it has not said yet what it serves)"
    )
    assert [each["ok"] for each in body["nodes"]] == [False, True, True, False, False]


async def test_an_adapter_is_served_as_soon_as_the_call_has_returned_and_a_probe_was_made() -> None:
    """Nodes are probed at once after it, however long the interval."""
    async with cluster() as running:
        for node in (running.prefill[0], running.decode[0]):
            node.change(served_models=["fake-model", "poet"])
        await running.admin("POST", "/v1/load_lora_adapter", json={"lora_name": "poet"})

        async def is_served() -> bool:
            return (await running.http.get("/v1/models/poet")).status_code == 200

        await until_true(is_served)
        got = await running.complete(model="poet")

    assert (got.status_code, got.headers["x-baton-path"]) == (200, "disaggregated")


@pytest.mark.parametrize("role", ["prefill", "decode"])
async def test_a_name_with_several_addresses_stands_for_several_nodes(
    role: Role, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They join and leave as the answer changes, and requests go on at the same time."""
    addresses = ["127.0.0.1"]
    monkeypatch.setattr("baton.proxy.nodes.dns.look_up", lambda *_: list(addresses))
    fabric = Fabric()
    first = FakeVllm(role, fabric)
    await first.start()
    port = int(first.url.rpartition(":")[2])
    second = FakeVllm(role, fabric, host="127.0.0.2", port=port)
    await second.start()
    own: dict[str, int] = {"prefill": 1, "decode": 1, role: 0}
    also = {role: (f"dns://nodes:{port}",)}
    async with cluster(**own, also=also, fabric=fabric, ready=False, dns_interval_s=0.05) as running:  # type: ignore[arg-type]

        async def until_known(*nodes: FakeVllm) -> None:
            async def are_known() -> bool:
                return {url for url, each in (await views(running)).items() if each["role"] == role} == {
                    node.url for node in nodes
                }

            await until_true(are_known)

        await until_known(first)
        addresses.append("127.0.0.2")
        await until_known(first, second)
        await running.until_ready()
        both = [await running.complete() for _ in range(4)]
        addresses.remove("127.0.0.1")
        await until_known(second)
        one = await running.complete()
    await first.stop()
    await second.stop()

    assert {each.status_code for each in (*both, one)} == {200}
    assert (len(first.seen), len(second.seen)) == (2, 3)


async def test_the_state_says_how_the_proxy_is_set_and_doing() -> None:
    """Version, settings without secrets, requests in flight, what may still be repeated, and for how long it runs."""
    async with cluster(max_requests=77, retry_burst=9, decode=1) as running:
        nodes = (*running.prefill, *running.decode)
        for node in nodes:
            node.may_answer.clear()
        asked = asyncio.create_task(running.complete())
        await until_true(lambda: all(node.seen for node in nodes))
        state = (await running.admin("GET", "/admin/state")).json()
        for node in nodes:
            node.may_answer.set()
        await asked

    [worker] = state["workers"]
    assert state["version"]
    assert state["settings"]["max_requests"] == 77
    assert state["settings"]["decode"] == [running.decode[0].url]
    assert (worker["in_flight"], worker["requests"], worker["retries_left"]) == (1, 2, 9)
    assert 0 < worker["uptime_s"] == state["uptime_s"]
