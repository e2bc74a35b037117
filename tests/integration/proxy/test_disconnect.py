"""A client that leaves, at any time, frees both nodes at once."""

import asyncio
import json

from tests.support.cluster import COMPLETION, Cluster, cluster, until_true


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


async def test_leaving_before_the_first_token_closes_both_legs() -> None:
    """Neither node goes on working for a client that has left."""
    async with cluster() as running:
        running.prefill[0].first_token_delay_s = 20.0
        _, writer = await ask(running, stream=False)
        await until_true(lambda: running.prefill[0].seen and running.decode[0].seen)
        writer.close()
        await until_idle(running)

        assert running.prefill[0].seen[0].cancelled
        assert running.decode[0].seen[0].cancelled
        await writer.wait_closed()


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
