"""What the nodes say about the time that a real request took."""

import asyncio
import random
import time
from typing import Any

import httpx
import pytest

from baton.contracts.http import DISAGGREGATED, TRACE_PATH
from tests.e2e.client import body_for
from tests.e2e.conftest import Trio
from tests.e2e.fidelity import answers
from tests.e2e.waiting import GIVEN_BACK_WITHIN_S, until
from tests.support.waiting import eventually

pytestmark = pytest.mark.e2e

PROMPT_TOKENS = 1500  # six chunks on this prefill node
CLIENT_TIMEOUT_S = 60.0
HANDED_OVER = "baton_transfers_total"
COMMITTED, LOADED = (
    'baton_transfers_total{outcome="committed",reason=""}',
    'baton_transfers_total{outcome="loaded",reason=""}',
)


def fresh_prompt(trio: Trio, seed: int) -> list[int]:
    """A prompt that no cache knows, of tokens that the model knows."""
    tokens = sorted({token for prompt in trio.prompts for token in prompt})
    return random.Random(seed).choices(tokens, k=PROMPT_TOKENS)


def test_a_request_is_timed_from_arrival_to_first_step(trio: Trio) -> None:
    """D's record has both nodes' milestones in order; P's own record, the series of both and their traces agree with it."""
    nodes, began_us = (trio.prefill, trio.decode), time.time() * 1e6
    before = [server.metrics() for server in nodes]
    (answer,) = answers(trio.proxy.url, trio.model, [fresh_prompt(trio, seed=1)])
    after, ended_us = [server.metrics() for server in nodes], time.time() * 1e6
    assert answer.path == DISAGGREGATED
    prefill, decode = (
        {name: now[name] - was.get(name, 0.0) for name in now} for was, now in zip(before, after, strict=True)
    )

    (there,) = (r for r in trio.prefill.transfers()["worker"]["recent"] if r["transfer_id"] == answer.transfer_id)
    (here,) = (r for r in trio.decode.transfers()["scheduler"]["recent"] if r["transfer_id"] == answer.transfer_id)
    ours, theirs = here["timings_s"], here["prefill"]["timings_s"]
    print(here)

    assert (here["state"], there["state"]) == ("loaded", "committed")
    assert (
        0.0 == ours["arrived"] < ours["reserved"] < ours["reserve_sent"] < ours["commit_received"] < ours["first_step"]
    )
    assert 0.0 == theirs["scheduled"] <= theirs["first_layer"] < theirs["last_layer"] <= theirs["commit"]
    assert theirs["first_layer"] <= theirs["first_push"] < theirs["last_push"] <= theirs["commit"]
    assert there["timings_s"] == theirs
    assert here["exposed_transfer_s"] == there["exposed_push_s"] + here["commit_to_first_step_s"]

    assert (prefill[COMMITTED], decode[LOADED]) == (1, 1)
    assert prefill["baton_pushed_bytes_total"] == there["bytes_pushed"] > 0
    assert prefill["baton_pushes_total"] > 0
    assert decode["baton_exposed_transfer_seconds_count"] == 1
    assert decode["baton_exposed_transfer_seconds_sum"] == pytest.approx(here["exposed_transfer_s"])
    assert decode["baton_commit_to_first_step_seconds_sum"] == pytest.approx(here["commit_to_first_step_s"])
    assert prefill["baton_exposed_push_seconds_sum"] == pytest.approx(there["exposed_push_s"])

    path = f"{TRACE_PATH}?transfer_id={answer.transfer_id}"
    assert_joined([event for server in nodes for event in server.get(path)], answer.transfer_id, began_us, ended_us)


def assert_joined(joined: list[dict[str, Any]], transfer_id: str, began_us: float, ended_us: float) -> None:
    """The traces of both nodes show one process per node, and on one machine the nodes' spans interlock."""
    spans = {event["name"]: event for event in joined if event["ph"] == "X"}
    assert set(spans) == {
        "prefill",
        "pushes",
        "exposed push",
        "allocation",
        "waiting for KV",
        "commit to first step",
    }
    assert len({event["pid"] for event in joined}) == 2
    assert {event["args"]["transfer_id"] for event in spans.values()} == {transfer_id}
    assert all(began_us < event["ts"] <= event["ts"] + event["dur"] < ended_us for event in spans.values())
    commit_us = spans["exposed push"]["ts"] + spans["exposed push"]["dur"]
    assert commit_us <= spans["commit to first step"]["ts"] + 2  # rounding, and two reads of two clocks
    assert spans["waiting for KV"]["ts"] < spans["pushes"]["ts"] + spans["pushes"]["dur"]


def test_gauges_fall_when_no_step_runs_any_more(trio: Trio) -> None:
    """Clients that leave amid their transfers: afterwards nothing is reserved, and the series say so without new work."""
    before = trio.decode.metrics()

    async def storm() -> None:
        async with httpx.AsyncClient(timeout=CLIENT_TIMEOUT_S) as client:
            prompts = [fresh_prompt(trio, seed) for seed in range(10, 18)]
            url = f"{trio.proxy.url}/v1/completions"
            clients = [asyncio.ensure_future(client.post(url, json=body_for(trio.model, prompt))) for prompt in prompts]
            await until(lambda: trio.decode.metrics()[HANDED_OVER] > before[HANDED_OVER])
            for one in clients:
                one.cancel()
            await asyncio.gather(*clients, return_exceptions=True)

    asyncio.run(storm())
    eventually(lambda: not trio.decode.metrics()["baton_reservations"], GIVEN_BACK_WITHIN_S)
    now = trio.decode.metrics()
    assert {
        name: now[name] for name in ("baton_reservations", "baton_reserved_blocks", "baton_quarantined_blocks")
    } == {
        "baton_reservations": 0,
        "baton_reserved_blocks": 0,
        "baton_quarantined_blocks": 0,
    }
    load = trio.decode.info()["load"]
    assert load["requests"] == 0
    assert 0 <= load["kv_usage"] <= 1
    assert now["baton_connector_up"] == now["baton_open_sessions"] == 1
    totals = trio.decode.transfers()["scheduler"]["totals"]
    assert now[HANDED_OVER] == totals["transfers"] > before[HANDED_OVER]
