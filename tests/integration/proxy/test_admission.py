"""Who is let in, who waits, and who is told to come again; on real sockets."""

import asyncio
from typing import Any

import httpx

from tests.integration.proxy.test_failures import assert_error, assert_nothing_left
from tests.support.cluster import COMPLETION, Cluster, cluster, until, until_true


async def ask(running: Cluster, body: dict[str, Any] | None = None, **headers: str) -> httpx.Response:
    """Ask for a completion; `_` in a header's name stands for `-`."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return await running.http.post("/v1/completions", json={**COMPLETION, **(body or {})}, headers=named)


async def admission(running: Cluster) -> dict[str, Any]:
    seen: dict[str, Any] = (await running.admin("GET", "/admin/state")).json()["workers"][0]["admission"]
    return seen


async def until_waiting(running: Cluster, count: int) -> None:
    await until(lambda: admission(running), lambda seen: seen["waiting"] == count)


async def test_more_than_may_be_served_at_once_wait_and_are_all_answered() -> None:
    """No request is refused, no node has more than it may, and the series tell of it."""
    async with cluster(max_requests=2) as running:
        running.hold()
        asked = [asyncio.create_task(ask(running)) for _ in range(6)]
        await until_waiting(running, 4)
        state = await admission(running)
        inside, waiting = [await running.metric(f"baton_admission_{name}") for name in ("inside", "waiting")]
        sent = len(running.decode[0].seen)
        running.release()
        got = await asyncio.gather(*asked)
        waits = await running.metric("baton_admission_wait_seconds_count")
        left = await running.metric("baton_admission_waiting")
        await assert_nothing_left(running)

    assert [each.status_code for each in got] == [200] * 6
    assert (inside, waiting, sent, waits, left) == (2, 4, 2, 6, 0)
    assert (state["inside"], state["max_requests"], state["waiting"]) == (2, 2, 4)


async def test_a_full_queue_is_503_and_a_tenant_with_too_many_is_429() -> None:
    """Both say when to come again; another tenant still finds a place; a key is in no answer and no series."""
    async with cluster(max_requests=1, max_waiting=3, max_waiting_per_tenant=2) as running:
        running.hold()
        asked = [asyncio.create_task(ask(running, authorization="Bearer key-one")) for _ in range(3)]
        await until_waiting(running, 2)
        tenant = await ask(running, authorization="Bearer key-one")
        asked.append(asyncio.create_task(ask(running, authorization="Bearer key-two")))
        await until_waiting(running, 3)
        queue = await ask(running)
        refused = [await running.metric(f'baton_refusals_total{{reason="{reason}"}}') for reason in ("tenant", "queue")]
        series = (await running.http.get("/metrics")).text
        running.release()
        got = await asyncio.gather(*asked)

    assert_error(tenant, 429)
    assert_error(queue, 503)
    assert tenant.json()["error"]["type"] == "rate_limit_error"
    assert int(tenant.headers["retry-after"]) >= 1
    assert int(queue.headers["retry-after"]) >= 1
    assert refused == [1, 1]
    assert "key-one" not in series + tenant.text
    assert [each.status_code for each in got] == [200] * 4


async def test_tenants_take_turns_and_a_lower_priority_number_goes_first() -> None:
    """Headers of the operator's choice name both; vLLM finds a priority in the body, and so do we."""
    async with cluster(max_requests=1, tenant_header="X-Tenant", priority_header="x-request-priority") as running:
        running.hold()
        asked = [asyncio.create_task(ask(running, {"user": "first"}))]
        await until_true(lambda: running.decode[0].seen)
        said: list[tuple[dict[str, Any], dict[str, str]]] = [
            ({"user": "patient", "priority": 5}, {}),
            *(({"user": "many"}, {"x_tenant": "many"}) for _ in range(3)),
            ({"user": "few"}, {"x_tenant": "few"}),
            ({"user": "urgent", "priority": 9}, {"x_request_priority": "-3"}),
        ]
        for count, (body, headers) in enumerate(said):
            asked.append(asyncio.create_task(ask(running, body, **headers)))
            await until_waiting(running, count + 1)
        running.release()
        await asyncio.gather(*asked)
        order = [request.body["user"] for request in running.decode[0].seen]

    assert order == ["first", "urgent", "many", "few", "many", "many", "patient"]


async def test_a_request_that_leaves_the_queue_leaves_nothing() -> None:
    """Of its own will, or because its time is over: 503 rather than 504, as nothing was done for it. Nodes never hear of it."""
    async with cluster(max_requests=1) as running:
        running.hold()
        first = asyncio.create_task(ask(running))
        await until_true(lambda: running.decode[0].seen)
        second = asyncio.create_task(ask(running))
        await until_waiting(running, 1)
        second.cancel()
        await until_waiting(running, 0)
        late = await ask(running, x_request_timeout_s="0.5")
        waited = await running.metric('baton_refusals_total{reason="waited"}')
        running.release()
        assert (await first).status_code == 200
        await assert_nothing_left(running)
        state = await admission(running)
        sent = len(running.decode[0].seen)

    assert_error(late, 503)
    assert int(late.headers["retry-after"]) >= 1
    assert (waited, sent, state["inside"], state["waiting"]) == (1, 1, 0, 0)
