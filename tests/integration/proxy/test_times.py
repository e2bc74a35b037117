"""How long things took, as `/metrics` shows it."""

import asyncio
import re

from tests.integration.proxy.test_cancels import ask as leaver
from tests.support.cluster import Cluster, cluster, until_true

TOKENS = 8


async def series(running: Cluster, pattern: str) -> dict[str, float]:
    """Samples whose name and labels contain a pattern; URLs are given as P and D."""
    text = (await running.http.get("/metrics")).text
    for name, nodes in (("P", running.prefill), ("D", running.decode)):
        for number, node in enumerate(nodes):
            text = text.replace(node.url, f"{name}{number}")
    lines = [line.rpartition(" ") for line in text.splitlines() if line[0] != "#" and re.search(pattern, line)]
    return {name: float(value) for name, _, value in lines}


async def test_legs_are_timed_by_node_and_whole_requests_by_path() -> None:
    """A stream has all times, another answer those that it can have, however it was made."""
    async with cluster() as running:
        await running.complete(stream=True)
        await running.complete()
        await running.complete(best_of=2)
        found = await series(running, r"(leg|handover|request|first_token)_seconds_count")

    assert found == {
        'baton_leg_seconds_count{role="prefill",until="answered",url="P0"}': 2,
        'baton_leg_seconds_count{role="decode",until="first_bytes",url="D0"}': 1,
        'baton_leg_seconds_count{role="decode",until="ended",url="D0"}': 3,
        'baton_handover_seconds_count{role="decode",url="D0"}': 1,
        'baton_request_seconds_count{path="disaggregated"}': 2,
        'baton_request_seconds_count{path="local"}': 1,
        'baton_time_to_first_token_seconds_count{path="disaggregated"}': 1,
    }


async def test_the_times_are_those_that_nodes_took() -> None:
    """P takes 0.2 s to answer, D answers 0.1 s later at the earliest, each token takes 0.05 s: no sum is below that.

    Each gap between chunks is counted, and not the time to the first one.
    """
    async with cluster() as running:
        running.prefill[0].first_token_delay_s, running.decode[0].token_delay_s = 0.2, 0.05
        running.decode[0].may_answer.clear()
        asked = asyncio.create_task(running.complete(stream=True, max_tokens=TOKENS))
        await until_true(lambda: series(running, "leg_seconds_count.*answered"))
        await asyncio.sleep(0.1)
        running.decode[0].may_answer.set()
        got = await asked
        found = await series(running, r"(leg|handover|token_latency)_seconds_(sum|count)")

    handover = found['baton_handover_seconds_sum{role="decode",url="D0"}']
    first = found['baton_leg_seconds_sum{role="decode",until="first_bytes",url="D0"}']
    chunks = got.content.count(b"\n\n")
    gaps = found['baton_inter_token_latency_seconds_sum{role="decode",url="D0"}']
    assert found['baton_leg_seconds_sum{role="prefill",until="answered",url="P0"}'] >= 0.2
    assert first >= 0.3
    assert 0.1 <= handover <= first
    assert 1 <= found['baton_inter_token_latency_seconds_count{role="decode",url="D0"}'] <= chunks - 1
    assert gaps >= (TOKENS - 2) * 0.05  # the last event and the end of the stream may be one chunk
    assert found['baton_leg_seconds_sum{role="decode",until="ended",url="D0"}'] >= first + gaps


async def test_a_leg_that_fails_or_is_cut_is_not_timed() -> None:
    """A node that refuses at once must not look fast."""
    async with cluster(max_attempts=1) as running:
        running.decode[0].fault = "status"
        await running.complete()
        running.decode[0].fault = ""
        running.prefill[0].first_token_delay_s = 20.0
        _, writer = await leaver(running, stream=True)
        await until_true(lambda: len(running.decode[0].seen) == 2)
        writer.close()
        await writer.wait_closed()
        await until_true(lambda: running.decode[0].seen[1].cancelled)
        found = await series(running, 'leg_seconds_count.*"decode"')

    assert found == {}
