"""A client that leaves, at any time, frees both nodes at once. A prefill node is told when no client wants a transfer any more, and no client waits for that."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from baton.contracts.http import MAX_CANCELLED
from baton.contracts.kv_transfer import new_transfer_id
from baton.proxy.handler import cancel_notifier
from baton.proxy.handler.cancel_notifier import MAX_WAITING, CancelNotifier
from baton.proxy.http.upstream import Upstream
from baton.proxy.nodes.node import Node
from baton.proxy.telemetry.metrics import Metrics, render
from tests.support.cluster import COMPLETION, Cluster, cluster, until_true
from tests.support.fake_fabric import Fabric
from tests.support.fake_vllm import SECRET, FakeVllm


def transfers(running: Cluster) -> list[str]:
    """The transfers that a node was asked for: a decode node may fail before the prefill node has heard of its own."""
    nodes = (running.prefill[0], *running.decode)
    return list(dict.fromkeys(seen.params.transfer_id for node in nodes for seen in node.seen if seen.params))


def cancelled(running: Cluster) -> list[str]:
    """The transfers that it was told to give up."""
    return [transfer_id for call in running.prefill[0].cancels for transfer_id in call]


async def until_all_cancelled(running: Cluster) -> None:
    """Wait until the prefill node has heard of every transfer, and no other."""
    await until_true(lambda: transfers(running) and sorted(cancelled(running)) == sorted(transfers(running)))


async def test_a_client_that_leaves_before_the_first_byte() -> None:
    """P has answered its leg, D has not: only the proxy knows that D may never ask."""
    async with cluster() as running:
        running.decode[0].fault = "hang"
        _, writer = await ask(running, stream=True)
        await until_true(lambda: running.prefill[0].seen and running.prefill[0].seen[0].finished)
        assert not running.prefill[0].cancels
        writer.close()

        await until_all_cancelled(running)

        assert not running.decode[0].cancels  # closing its connection suffices
        await writer.wait_closed()


async def test_a_decode_node_that_fails() -> None:
    """Each attempt has a transfer of its own, and each is given up; a dead engine may show as 200 and an error event."""
    async with cluster(decode=2) as running:
        for node in running.decode:
            node.fault = "error first"
        assert (await running.complete(stream=True)).status_code >= 500

        await until_all_cancelled(running)

        assert len(transfers(running)) == 2


async def test_a_decode_node_that_does_not_come_for_the_prompt() -> None:
    """It refuses, computes the prompt itself, is cut off by the deadline, or never hears of it; or the prefill node may still get it."""
    async with cluster(probe_interval_s=30.0) as running:
        (maker,), (taker,) = running.prefill, running.decode
        taker.fault, taker.status = "status", 400  # the client's own fault, which P did not find
        assert (await running.complete()).status_code == 400
        taker.fault, taker.recomputes = "", True  # the KV that was meant for it may still be held
        assert (await running.complete()).status_code == 200
        taker.fault, soon = "hang", {"x-request-timeout-s": "0.5"}
        assert (await running.http.post("/v1/completions", json=COMPLETION, headers=soon)).status_code == 504
        await until_all_cancelled(running)

        told, taker.fault, maker.fault = len(cancelled(running)), "", "status"
        assert (await running.complete()).status_code == 200
        await until_true(lambda: len(cancelled(running)) == told + 1)
        maker.fault = ""
        await taker.stop()
        assert (await running.complete()).status_code == 502
        await until_true(lambda: len(cancelled(running)) == told + 2)


async def test_a_good_answer_cancels_nothing() -> None:
    """Neither does one whose client leaves later: D has the KV by then."""
    async with cluster() as running:
        assert (await running.complete()).status_code == 200
        running.decode[0].token_delay_s = 1.0
        reader, writer = await ask(running, stream=True)
        await reader.readuntil(b"\n\n")
        writer.close()
        await until_true(lambda: running.decode[0].seen[1].cancelled)
        running.decode[0].fault = "drop"
        await running.complete()  # what comes after it comes first to the node

        await until_true(lambda: cancelled(running))

        assert cancelled(running) == transfers(running)[2:]
        await writer.wait_closed()


async def test_no_client_waits_for_it() -> None:
    """The answer is there while the prefill node has not taken the cancel."""
    async with cluster() as running:
        running.prefill[0].cancels_may_end.clear()
        running.decode[0].fault = "drop"
        got = await running.complete()
        await until_true(lambda: running.prefill[0].cancels)

        assert got.status_code == 502
        assert "baton_transfer_cancels_total{" not in (await running.http.get("/metrics")).text
        running.prefill[0].cancels_may_end.set()
        await running.until_metric('baton_transfer_cancels_total{result="told"}', 1)


@asynccontextmanager
async def telling(
    monkeypatch: pytest.MonkeyPatch, patience_s: float = 60.0
) -> AsyncIterator[tuple[CancelNotifier, FakeVllm, Node, Metrics]]:
    """The cancels of a proxy, and one prefill node."""
    monkeypatch.setattr(cancel_notifier, "PAUSES_S", (0.01, 0.05))
    fake = FakeVllm("prefill", Fabric())
    await fake.start()
    upstream, metrics = Upstream(connect_timeout_s=1.0), Metrics()
    made = CancelNotifier(SECRET, upstream, metrics, patience_s=patience_s)
    try:
        yield made, fake, Node(url=fake.url, role="prefill"), metrics
    finally:
        await made.stop()
        await upstream.stop()
        await fake.stop()


def ids(count: int) -> list[str]:
    return [new_transfer_id() for _ in range(count)]


async def test_what_comes_up_together_is_sent_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """One call at a time and node, none with more ids than a node takes."""
    async with telling(monkeypatch) as (made, fake, node, metrics):
        wanted = ids(MAX_CANCELLED + 5)
        for transfer_id in wanted:
            made.add(node, transfer_id)
        await until_true(lambda: sum(map(len, fake.cancels)) == len(wanted))
        assert [transfer_id for call in fake.cancels for transfer_id in call] == wanted
        assert [len(call) for call in fake.cancels] == [MAX_CANCELLED, 5]
        await until_true(lambda: f'result="told"}} {len(wanted)}.0'.encode() in render(metrics.registry.collect()))

        made.add(node, wanted[0])  # the task has ended by then
        await until_true(lambda: len(fake.cancels) == 3)


async def test_a_node_that_does_not_answer_holds_up_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each node is told by a task of its own, and what waits for a silent one is bounded."""
    async with telling(monkeypatch) as (made, fake, node, metrics):
        other = FakeVllm("prefill", Fabric())
        await other.start()
        fake.cancels_may_end.clear()
        made.add(node, ids(1)[0])
        await until_true(lambda: fake.cancels)

        for transfer_id in ids(MAX_WAITING + 7):
            made.add(node, transfer_id)
        made.add(Node(url=other.url, role="prefill"), ids(1)[0])
        await until_true(lambda: other.cancels)

        assert b'result="lost"} 7.0' in render(metrics.registry.collect())
        assert len(fake.cancels) == 1
        fake.cancels_may_end.set()
        await until_true(lambda: sum(map(len, fake.cancels)) == MAX_WAITING + 1)
        await other.stop()


async def test_a_node_that_is_silent_is_told_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine may be stopped for seconds; a cancel may be said twice, and a lost one would cost `orphan_timeout_s`."""
    monkeypatch.setattr(cancel_notifier, "TIMEOUT_S", 0.1)
    async with telling(monkeypatch) as (made, fake, node, metrics):
        fake.cancel_statuses = [503] * 9
        fake.cancels_may_end.clear()
        made.add(node, ids(1)[0])
        await until_true(lambda: len(fake.cancels) >= 2)  # it hangs; then it refuses
        fake.cancels_may_end.set()

        await until_true(lambda: b'result="told"} 1.0' in render(metrics.registry.collect()))

        assert len(fake.cancels) == 10
        assert fake.cancels[0] == fake.cancels[-1]


async def test_a_node_that_never_takes_it_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the time for which it would keep the prompt; one that does not know the route is not asked again, and one that is gone not waited for."""
    async with telling(monkeypatch, patience_s=0.3) as (made, fake, node, metrics):
        fake.cancel_statuses = [404, *[503] * 99]
        made.add(node, ids(1)[0])
        await until_true(lambda: b'result="lost"} 1.0' in render(metrics.registry.collect()))
        assert len(fake.cancels) == 1

        made.add(node, ids(1)[0])
        await until_true(lambda: b'result="lost"} 2.0' in render(metrics.registry.collect()))
        assert len(fake.cancels) > 2
    async with telling(monkeypatch) as (made, fake, node, metrics):
        await fake.stop()
        made.add(node, ids(1)[0])
        await until_true(lambda: b'result="lost"} 1.0' in render(metrics.registry.collect()))


async def test_stopping_says_what_is_left_to_say(monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy that is stopped ends its requests, and their transfers with them; a silent node does not keep it."""
    monkeypatch.setattr(cancel_notifier, "TIMEOUT_S", 0.2)
    async with telling(monkeypatch) as (made, fake, node, _):
        made.add(node, ids(1)[0])
        await made.stop()
        assert len(fake.cancels) == 1

        fake.cancels_may_end.clear()
        made.add(node, ids(1)[0])
        async with asyncio.timeout(20):
            await made.stop()


async def ask(running: Cluster, *, stream: bool) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Send a request on a connection of its own."""
    body = json.dumps({**COMPLETION, "stream": stream}).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body)
    reader, writer = await asyncio.open_connection("127.0.0.1", int(running.url.rsplit(":", 1)[1]))
    writer.write(head + body)
    return reader, writer


async def until_idle(running: Cluster) -> None:
    """Wait until every node was told, and the proxy counts nothing as in flight."""
    nodes = (*running.prefill, *running.decode)
    await until_true(lambda: all(seen.finished or seen.cancelled for node in nodes for seen in node.seen))
    await running.until_nothing_in_flight()
    metrics = (await running.http.get("/metrics")).text
    assert 'status="client_left"' in metrics or 'status="200"' in metrics


async def test_leaving_while_the_answer_is_recomputed_closes_that_leg_too() -> None:
    """The second attempt is watched like the first."""
    async with cluster() as running:
        running.prefill[0].fault = "status"
        running.decode[0].first_token_delay_s = 20.0
        _, writer = await ask(running, stream=True)
        await until_true(lambda: len(running.decode[0].seen) == 2)
        writer.close()
        await until_idle(running)

        assert [seen.cancelled for seen in running.decode[0].seen] == [True, True]
        await writer.wait_closed()


async def test_fifty_clients_that_leave_at_different_moments_leave_nothing_behind() -> None:
    """Whatever a request was waiting for, both nodes are free soon after, and serve again."""
    async with cluster() as running:
        running.prefill[0].first_token_delay_s = 0.05
        running.decode[0].token_delay_s = 0.02

        async def visit(stay_s: float) -> None:
            _, writer = await ask(running, stream=True)
            await asyncio.sleep(stay_s)
            writer.close()
            await writer.wait_closed()

        await asyncio.gather(*(visit(0.004 * index) for index in range(50)))
        await until_idle(running)
        got = await running.complete()

    assert (got.status_code, got.headers["x-baton-path"]) == (200, "disaggregated")
