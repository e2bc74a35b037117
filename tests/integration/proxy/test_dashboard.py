"""The dashboard's feed on real sockets: who sees what, what is asked of nodes, and that it stays bounded."""

import asyncio
from typing import Any

import pytest

from baton.contracts.http import TIMELINE_PATH, TRANSFERS_PATH
from baton.proxy.dashboard import asking, dashboard, recorder, routes
from baton.proxy.dashboard.routes import files
from tests.support.cluster import ADMIN_TOKEN, Cluster, cluster, until, until_true
from tests.support.dashboard import tell_transfers
from tests.support.fake_vllm import FakeVllm

FEED = "/dashboard/api/feed"
TRANSFER = "/dashboard/api/transfers/" + "ab" * 16


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look gets a new answer, and nodes that are slow to answer are waited for."""
    monkeypatch.setattr(dashboard, "FRESH_S", 0.0)
    monkeypatch.setattr(asking, "TIMEOUT_S", 20.0)


async def look(running: Cluster) -> dict[str, Any]:
    answer = await running.admin("GET", FEED)
    assert answer.status_code == 200
    found: dict[str, Any] = answer.json()
    return found


def asked(node: FakeVllm, path: str) -> int:
    """How often a node was asked for something."""
    return sum(1 for _, at, *_ in node.was_passed if at == path)


async def test_the_page_and_its_files_are_for_anybody_and_from_here() -> None:
    """Fenced against foreign scripts and frames; unchanged files are not sent again; nothing else can be read."""
    async with cluster() as running:
        page = await running.http.get("/dashboard")
        again = await running.http.get("/dashboard", headers={"if-none-match": page.headers["etag"]})
        every = {name: await running.http.get(f"/dashboard/{name}") for name in files()}
        others = [await running.http.get(f"/dashboard/{name}") for name in ("x.js", "../admin.py", "%2e%2e%2fadmin.py")]

    assert (page.status_code, again.status_code, again.content) == (200, 304, b"")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert "frame-ancestors 'none'" in page.headers["content-security-policy"]
    assert {name: each.status_code for name, each in every.items()} == dict.fromkeys(files(), 200)
    assert {each.headers["x-content-type-options"] for each in every.values()} == {"nosniff"}
    assert {each.status_code for each in others} == {404}
    assert all("https://" not in each.text for each in every.values())


async def test_without_the_token_there_is_what_is_open_elsewhere() -> None:
    """Nodes and sums; no single request, even while an operator looks, and no node is asked for it. A wrong token is refused instead."""
    async with cluster() as running:
        await look(running)
        await running.complete(stream=True)
        seen = (await running.http.get(FEED)).json()
        refused = [
            await running.http.get(path, headers={"authorization": value})
            for path in (FEED, TRANSFER + "?prefill=http://x&decode=http://y")
            for value in ("Bearer x", f"Basic {ADMIN_TOKEN}")
        ]

    assert [(each.status_code, each.json()["error"]["type"]) for each in refused] == [(401, "authentication_error")] * 4
    assert (seen["operator"], seen["requests"], seen["leaving"]) == (False, None, [])
    assert "gauges" not in seen
    assert sum(seen["counters"]["requests"].values()) == 1
    assert seen["ttft"]["+Inf"] == 1
    assert [node["state"] for node in seen["nodes"]] == ["ready", "ready"]
    assert set(seen["nodes"][0]) == {
        *("url", "role", "slot", "state", "reason", "breaker", "breaker_openings", "models"),
        *("requests", "other_requests", "first", "gaps"),
    }


async def test_without_a_token_file_there_are_no_operators() -> None:
    """The open view is all there is; a client that brings a token is told which setting is missing."""
    async with cluster(admin_token=None) as running:
        anybody = await running.http.get(FEED)
        operator = await running.admin("GET", FEED)
        transfer = await running.http.get(TRANSFER, params={"prefill": "http://x", "decode": "http://y"})

    assert anybody.json()["operator"] is False
    assert (operator.status_code, transfer.status_code) == (403, 403)
    assert "proxy.admin_token_file is not set" in operator.json()["error"]["message"]


async def test_an_operator_sees_requests_under_way_and_ended() -> None:
    """From the look on: where each is, how its legs went, which failed, and what became of it."""
    async with cluster(decode=2, breaker_failures=1) as running:
        await look(running)
        running.hold()
        task = asyncio.create_task(running.complete(stream=True, max_tokens=5))
        await until_true(lambda: any(node.seen for node in running.decode))
        during = await look(running)
        running.release()
        answer = await task
        taker = next(node for node in running.decode if node.seen)
        after = await look(running)
        running.decode[0].fault = "status"
        for _ in range(2):
            await running.complete(stream=True)
        at_last = await look(running)

    (live,), (ended,) = during["requests"]["live"], after["requests"]["recent"]
    assert (live["phase"] in ("prefill", "decode"), during["in_flight"]) == (True, 1)
    assert (ended["status"], ended["path"], ended["phase"]) == (200, "disaggregated", "ended")
    assert ended["transfer"] == answer.headers["x-baton-transfer-id"]
    assert (ended["prefill"], ended["decode"]) == (running.prefill[0].url, taker.url)
    assert {leg[0]: leg[5] for leg in ended["legs"]} == {"prefill": "", "decode": ""}
    assert ended["ttft_s"] < ended["lasted_s"]
    assert ended["chunks"] >= 1  # a busy proxy reads several tokens at once
    assert "Once upon" not in str(after)
    tried = next(request for request in at_last["requests"]["recent"] if request["attempts"] == 2)
    assert [leg[5] for leg in tried["legs"] if leg[0] == "decode"] == ["status", ""]
    assert [event[1] for event in tried["events"]] == ["retry"]
    assert {node["breaker"] for node in at_last["nodes"]} == {"open", "closed"}


async def test_nodes_are_asked_only_while_a_page_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Quarantine and failures come with the second look; when no page looks any more, no node is asked any more."""
    monkeypatch.setattr(asking, "ROUND_S", 0.02)
    monkeypatch.setattr(recorder, "LOOK_S", 0.2)
    async with cluster() as running:
        node = running.decode[0]
        tell_transfers(node, quarantined=7)
        await running.http.get(FEED)
        await asyncio.sleep(0.1)
        before = asked(node, TRANSFERS_PATH)
        await look(running)
        await until_true(lambda: asked(node, TRANSFERS_PATH) >= 2)
        tell_transfers(
            node, quarantined=7, failures=[{"transfer_id": "ff/0-1", "state": "dirty", "reason": "it broke"}]
        )
        seen = await until(lambda: look(running), lambda seen: seen["failures"])
        await asyncio.sleep(0.4)
        then = asked(node, TRANSFERS_PATH)
        await asyncio.sleep(0.2)
        rest = asked(node, TRANSFERS_PATH) - then

    assert (before, rest) == (0, 0)
    assert seen["gauges"][f"decode {node.url}"]["quarantined"] == 7
    (failure,) = seen["failures"]
    assert (failure["transfer"], failure["state"], failure["reason"]) == ("ff", "dirty", "it broke")
    assert f"prefill {running.prefill[0].url}" not in seen["gauges"]  # it answered 404, which is no number


async def test_many_nodes_are_asked_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """So many a round, and each of them some time."""
    monkeypatch.setattr(asking, "ROUND_S", 0.05)
    monkeypatch.setattr(asking, "MOST_A_ROUND", 2)
    async with cluster(prefill=1, decode=4) as running:
        nodes = [*running.prefill, *running.decode]
        for node in nodes:
            tell_transfers(node)
        await look(running)
        await until_true(lambda: all(asked(node, TRANSFERS_PATH) for node in nodes))
        counts = [asked(node, TRANSFERS_PATH) for node in nodes]

    assert max(counts) - min(counts) <= 1


async def test_a_transfer_is_told_of_by_both_nodes() -> None:
    """Layers from P, instants from D, and where they lie on P's axis.

    Whatever address a request names, the cluster's token goes to no host that is no member; a node in the other role is none either.
    What is no transfer's id is refused before a node is asked.
    """
    async with cluster() as running:
        stranger = FakeVllm("decode", running.fabric)
        await stranger.start()
        for node in (*running.prefill, *running.decode, stranger):
            tell_transfers(node)
        urls = {"prefill": running.prefill[0].url, "decode": running.decode[0].url}
        names = ("x", "AB" * 16, "ab" * 17)
        refused = [await running.admin("GET", f"/dashboard/api/transfers/{name}", params=urls) for name in names]
        before = asked(running.prefill[0], TIMELINE_PATH)
        told = (await running.admin("GET", TRANSFER, params=urls)).json()
        urls = {"prefill": running.decode[0].url, "decode": stranger.url}
        not_told = (await running.admin("GET", TRANSFER, params=urls)).json()
        await stranger.stop()

    assert before == 0
    assert [(each.status_code, each.json()["error"]["type"]) for each in refused] == [
        (400, "invalid_request_error")
    ] * 3
    assert len(told["prefill"]["flows"][0]["written"]) == 3 * 28
    assert told["decode"]["ended"][0]["state"] == "loaded"
    assert told["offset"] == {"at_s": pytest.approx(0.0, abs=1e-6), "uncertainty_s": pytest.approx(0.001, abs=1e-6)}
    assert stranger.was_passed == []
    assert "no prefill node" in not_told["prefill"]["problem"]
    assert stranger.url in not_told["decode"]["problem"]


async def test_so_many_may_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who comes beyond that is told when to come again, in OpenAI's shape; neither operators nor requests are kept out."""
    monkeypatch.setattr(routes, "ANSWERS_PER_S", 0.0)
    monkeypatch.setattr(routes, "BURST", 2.0)
    async with cluster() as running:
        anybody = [await running.http.get(FEED) for _ in range(3)]
        operator = [await running.admin("GET", FEED) for _ in range(3)]
        served = await running.complete()

    for got in (anybody, operator):
        assert [each.status_code for each in got] == [200, 200, 503]
        assert got[-1].headers["retry-after"] == "2"
        assert got[-1].json()["error"]["type"] == "service_unavailable_error"
    assert served.status_code == 200


async def test_many_who_look_share_one_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """Within half a second all get the same answer."""
    monkeypatch.setattr(dashboard, "FRESH_S", 60.0)
    async with cluster() as running:
        bodies = [each.content for each in await asyncio.gather(*(running.http.get(FEED) for _ in range(10)))]

    assert len(set(bodies)) == 1
