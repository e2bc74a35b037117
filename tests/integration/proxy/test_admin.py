"""The admin API on real sockets: members come and go while requests run."""

import asyncio
import json
from typing import Any

import pytest

from tests.integration.proxy.test_models import OTHER, two_models
from tests.support.cluster import ADMIN_TOKEN, Cluster, cluster, until, until_true
from tests.support.fake_fabric import Fabric
from tests.support.fake_vllm import FakeVllm

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
    await until(lambda: views(running), lambda seen: seen[node.url]["state"] == "ready")


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


async def test_a_node_is_drained_and_taken_back() -> None:
    """It stays a member, with its state, and gets nothing; with all decode nodes drained every request is refused."""
    async with cluster(decode=2) as running:
        node, other = running.decode
        drained = await running.admin("POST", f"{NODES}/drain", json={"url": node.url})
        without = [await running.complete() for _ in range(4)]
        seen = len(node.seen)
        ready = await running.http.get("/ready")
        await running.admin("POST", f"{NODES}/drain", json={"url": other.url})
        not_ready, refused = await running.http.get("/ready"), await running.complete()
        for each in (node, other):
            await running.admin("POST", f"{NODES}/drain", json={"url": each.url, "draining": False})
        again = [await running.complete() for _ in range(4)]

    assert drained.json()["nodes"][0]["state"] == "draining"
    assert {each.status_code for each in (*without, *again)} == {200}
    assert (seen, len(node.seen)) == (0, 2)
    assert ready.status_code == 200
    assert [each["state"] for each in ready.json()["nodes"] if each["url"] == node.url] == ["draining"]
    assert (not_ready.status_code, not_ready.json()["reasons"]) == (503, ["no decode node is ready"])
    assert refused.status_code == 503


WRONG_CALLS: list[tuple[str, str, dict[str, Any] | None, int, str]] = [
    ("POST", NODES, {"url": "http://n"}, 400, "body.role"),
    ("POST", NODES, {"url": "http://n", "role": "both"}, 400, "body.role"),
    ("POST", NODES, {"url": "n:8100", "role": "decode"}, 400, "not of the form"),
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


async def test_a_call_goes_to_every_node_that_it_concerns_as_it_came() -> None:
    """Both roles need the same adapters: what one node computes the other goes on with. Nodes of another base model get none."""
    adapter = {"lora_name": "poet", "lora_path": "/adapters/poet", "base_model_name": OTHER}
    async with two_models() as running:
        unclear = await running.admin("POST", "/v1/load_lora_adapter", json={"lora_name": "poet"})
        malformed = await running.admin("POST", "/v1/load_lora_adapter", content=b"[]")
        loaded = await running.admin("POST", "/v1/load_lora_adapter", json=adapter)
        unloaded = await running.admin("POST", "/v1/unload_lora_adapter", json=adapter)
        emptied = await running.admin("POST", "/reset_prefix_cache?reset_external=true")
        (other_maker, maker), (other_taker, taker) = running.prefill, running.decode

    error = unclear.json()["error"]
    assert (error["type"], error["param"], error["code"]) == ("BadRequestError", "base_model_name", 400)
    assert [each.status_code for each in (malformed, loaded, unloaded, emptied)] == [400, 200, 200, 200]
    assert [(each["url"], each["ok"]) for each in loaded.json()["nodes"]] == [(maker.url, True), (taker.url, True)]
    for node in (maker, taker):
        assert [(path, query) for path, query, _ in node.operated] == [
            ("/v1/load_lora_adapter", ""),
            ("/v1/unload_lora_adapter", ""),
            ("/reset_prefix_cache", "reset_external=true"),
        ]
        assert [json.loads(body) if body else None for _, _, body in node.operated] == [adapter, adapter, None]
    for node in (other_maker, other_taker):
        assert [path for path, _, _ in node.operated] == ["/reset_prefix_cache"]


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
    async with cluster(probe_interval_s=30.0) as running:
        await running.admin("POST", "/v1/load_lora_adapter", json={"lora_name": "poet"})
        await until(lambda: running.http.get("/v1/models/poet"), lambda got: got.status_code == 200)
        got = await running.complete(model="poet")

    assert (got.status_code, got.headers["x-baton-path"]) == (200, "disaggregated")


async def test_a_name_with_several_addresses_stands_for_several_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """They join and leave as the answer changes, and requests go on at the same time."""
    addresses = ["127.0.0.1"]
    monkeypatch.setattr("baton.proxy.nodes.dns.look_up", lambda *_: list(addresses))
    fabric = Fabric()
    first = FakeVllm("decode", fabric)
    await first.start()
    port = int(first.url.rpartition(":")[2])
    second = FakeVllm("decode", fabric, host="127.0.0.2", port=port)
    await second.start()
    async with cluster(
        decode=0, also={"decode": (f"dns://nodes:{port}",)}, fabric=fabric, ready=False, dns_interval_s=0.05
    ) as running:

        async def until_known(*nodes: FakeVllm) -> None:
            urls = {node.url for node in (*running.prefill, *nodes)}
            await until(lambda: views(running), lambda seen: set(seen) == urls)

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
