"""Nodes of an earlier release beside those of this one."""

import asyncio
from typing import Any

import pytest

from tests.integration.proxy.test_moving import NODES, params
from tests.support.cluster import cluster, until_true

EARLIEST = {"v", "id", "role", "peer", "sig", "several", "grids"}  # before decision 55
STARTING = EARLIEST | {"first", "relay", "start", "choices"}  # before decision 63
REQUESTS: list[dict[str, Any]] = [
    {"stream": True},
    {"stream": False},
    {"stream": True, "n": 2},
    {"stream": False, "prompt": ["a", "b"]},
]


@pytest.mark.parametrize(
    ("old", "known"), [("a prefill node", STARTING), ("a decode node", STARTING), ("all nodes", EARLIEST)]
)
async def test_an_earlier_release_is_sent_no_parameter_that_it_does_not_know(old: str, known: set[str]) -> None:
    """It would take their signature for a wrong one. Whole answers and streams, some of which leave their nodes, and answers that return."""
    settings: dict[str, Any] = {"return_answers": "on", "prefill_policy": "round_robin", "decode_policy": "round_robin"}
    described = {"both_ways": True}
    async with cluster(
        prefill=2, decode=2, first_tokens="3-alike", both_ways=True, described=described, **settings
    ) as running:
        chosen = {"a prefill node": running.prefill[:1], "a decode node": running.decode[:1]}
        earlier = chosen.get(old, [*running.prefill, *running.decode])
        before = {node: node.probes for node in earlier}
        for node in earlier:
            starts = "start" in known
            node.change(first_tokens="3-alike" if starts else "", both_ways=False)
            node.names_tokens = node.starts = starts
        await until_true(lambda: all(node.probes > before[node] + 1 for node in earlier))
        for node in running.decode:
            node.token_delay_s = 0.01

        asked = [asyncio.create_task(running.complete(max_tokens=40, **more)) for more in REQUESTS * 4]
        await until_true(lambda: all(node.seen for node in running.decode))
        for node in running.decode:
            await running.admin("POST", f"{NODES}/evacuate", json={"url": node.url})
        answers = await asyncio.gather(*asked)
        await running.until_nothing_in_flight()

    assert {answer.status_code for answer in answers} == {200}
    assert [names for node in earlier for seen in node.seen if (names := params(seen).keys() - known)] == []
    assert all(node.seen for node in earlier)
