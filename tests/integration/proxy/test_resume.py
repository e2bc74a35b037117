"""Streams that break after the first byte: the client sees one stream, or an error event that says why not."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

import httpx
import pytest

from baton.contracts.kv_transfer import FIELD
from baton.proxy.resume.rules import NotResumableReason
from tests.integration.proxy.test_failover import transfer
from tests.integration.proxy.test_failures import assert_nothing_left
from tests.support.cluster import CHAT, COMPLETION, Cluster, cluster, until_true
from tests.support.fake_answers import FIRST_ID, MODEL, events
from tests.support.fake_typed import typed_stream
from tests.support.fake_vllm import Fault

TOKENS = 9
RANDOM: dict[str, Any] = {"stream": True, "max_tokens": TOKENS}
MESSAGE: dict[str, Any] = {"model": MODEL, "messages": CHAT["messages"]}
RESPONSE: dict[str, Any] = {"model": MODEL, "input": "a", "max_output_tokens": TOKENS}
PATHS = {
    "completion": "/v1/completions",
    "chat": "/v1/chat/completions",
    "message": "/v1/messages",
    "response": "/v1/responses",
}
BODIES = {"completion": COMPLETION, "chat": CHAT, "message": MESSAGE, "response": RESPONSE}


@asynccontextmanager
async def breaking(fault: Fault = "cut", *, decode: int = 2, **settings: Any) -> AsyncIterator[Cluster]:
    """Run a cluster all decode nodes of which break their streams, but for the last one."""
    async with cluster(decode=decode, probe_interval_s=30.0, first_tokens="3-alike", **settings) as running:
        running.prefill[0].first_token_delay_s = 0.2
        for number, node in enumerate(running.decode):
            node.created, node.token_delay_s, node.recomputes = number + 1, 0.01, True
            node.fault = fault if number < decode - 1 else ""
        yield running


async def ask(running: Cluster, kind: str, **more: Any) -> httpx.Response:
    """Ask until the answer began on the first node, which breaks it."""
    body = {**BODIES[kind], **more}
    if kind == "response":
        del body["max_tokens"]
    while True:
        got = await running.http.post(PATHS[kind], json=body)
        if running.decode[0].seen:
            return got


def whole(kind: str, **more: Any) -> bytes:
    """The stream of a node that does not break."""
    if kind in ("message", "response"):
        return b"".join(typed_stream(PATHS[kind], TOKENS))
    return b"".join(events(PATHS[kind], TOKENS, **more))


def same_id(answer: bytes) -> bytes:
    """An answer with the name that a fake gives it: the proxy draws those of responses."""
    return re.sub(rb"resp_[0-9a-f]{32}", b"resp_1", answer).replace(b'": ', b'":').replace(b", ", b",")


@pytest.mark.parametrize(
    ("kind", "fault"),
    [("completion", "silent end"), ("chat", "cut in event"), ("message", "error event"), ("response", "cut")],
)
async def test_a_stream_that_breaks_goes_on_as_one(kind: str, fault: Fault) -> None:
    """Byte for byte the stream of a node that did not fail: one id, no token twice, none missing, one end; nothing was said of sampling."""
    async with breaking(fault) as running:
        got = await ask(running, kind, **RANDOM)
        how = {"error event": "status"}.get(fault, "disconnect")
        resumed = await running.metric(f'baton_streams_resumed_total{{kind="{how}"}}')
        await assert_nothing_left(running)

    assert got.status_code == 200
    assert same_id(got.content) == same_id(whole(kind))
    assert resumed == 1


@pytest.mark.parametrize("kind", ["chat", "response"])
async def test_another_node_starts_with_the_tokens_that_were_sent(kind: str) -> None:
    """It is asked the client's own request, without transfer parameters of the client's, and planned like any other."""
    async with breaking() as running:
        await ask(running, kind, **RANDOM, seed=4, **{FIELD: {"do_remote_prefill": True}})
        first, second = running.decode[0].seen[0], running.decode[1].seen[-1]
        maker = {transfer(request): request for node in running.prefill for request in node.seen}[transfer(second)]

    params: Any = second.params
    (ids,) = params.start
    assert 0 < len(ids) < TOKENS
    assert ids == tuple(FIRST_ID + at for at in range(len(ids)))
    assert {**first.body, FIELD: 0} == {**second.body, FIELD: 0}
    assert params.peer
    assert transfer(first) != transfer(second)
    assert maker.params is not None
    assert not maker.params.start


async def test_a_stream_may_break_twice() -> None:
    """What the second leg added is remembered like what the first had."""
    async with breaking(decode=3) as running:
        got = await ask(running, "completion", **RANDOM)
        legs = sum(bool(node.seen) for node in running.decode)
        await assert_nothing_left(running)

    assert got.content in [whole("completion", created=number) for number in (1, 2)]
    assert legs >= 2


async def test_each_of_several_answers_goes_on_by_itself() -> None:
    """With its own tokens; each id is there once, and usage counts the prompt and every token once."""
    async with breaking() as running:
        more = {"n": 3, "return_token_ids": True, "stream_options": {"include_usage": True}}
        got = await ask(running, "chat", **RANDOM, **more)
        started: Any = running.decode[1].seen[-1].params

    assert got.content == whole("chat", n=3, ids=True, usage=True)
    assert len(started.start) == 3


@pytest.mark.parametrize(
    ("settings", "nodes", "reason"),
    [
        ({"resume": "off"}, {}, NotResumableReason.OFF),
        ({"retry_burst": 1, "decode": 3}, {2: {"fault": "cut"}}, NotResumableReason.RETRY_DENIED),
        ({}, {0: {"names_tokens": False}}, NotResumableReason.NO_TOKEN_IDS),
        ({}, {1: {"drift": 1, "starts": False}}, NotResumableReason.DIFFERS),
        ({"decode": 1}, {0: {"fault": "cut"}}, NotResumableReason.NO_NODE),
    ],
)
async def test_a_stream_that_cannot_go_on_says_why(
    settings: dict[str, Any], nodes: dict[int, dict[str, Any]], reason: NotResumableReason
) -> None:
    """What came, then an error event with the reason, no `[DONE]`: for want of a setting, of tokens, or of another node."""
    async with breaking(**settings) as running:
        for number, changes in nodes.items():
            for name, value in changes.items():
                setattr(running.decode[number], name, value)
        got = await ask(running, "completion", **RANDOM)
        counted = await running.metric(f'baton_streams_not_resumed_total{{reason="{reason}"}}')
        await assert_nothing_left(running)

    relayed, _, error = got.content.rpartition(b"data: ")
    assert any(whole("completion", created=number).startswith(relayed) for number in (1, 2))
    assert reason.sentence in json.loads(error)["error"]["message"]
    assert b"[DONE]" not in got.content
    assert counted == 1


async def test_a_whole_answer_goes_on_from_the_tokens_that_it_had() -> None:
    """Its node has named them while it made the answer: another one starts with them, and gives the whole answer."""
    async with breaking() as running:
        for node in running.decode:
            node.names_ahead = 4
        got = await ask(running, "chat", max_tokens=TOKENS)
        started: Any = running.decode[1].seen[-1].params
        plain = await running.chat(max_tokens=TOKENS)
        await assert_nothing_left(running)

    assert got.status_code == 200
    assert got.headers["content-type"] == "application/json"
    assert got.json()["choices"] == plain.json()["choices"]
    assert started.start == (tuple(FIRST_ID + at for at in range(4)),)


@pytest.mark.parametrize("first_tokens", ["", "3-alike"])
async def test_a_whole_answer_that_no_node_goes_on_with_is_made_again(first_tokens: str) -> None:
    """By a node that starts with no tokens, or after one that would not."""
    async with cluster(decode=3, first_tokens=first_tokens, probe_interval_s=30.0) as running:
        for node in running.decode:
            node.names_ahead, node.recomputes = 4, True
        running.decode[0].fault = "cut"
        running.decode[1].refuses_starts = running.decode[2].refuses_starts = True
        got = await ask(running, "chat", max_tokens=TOKENS)
        await assert_nothing_left(running)

    assert got.status_code == 200


async def test_a_whole_answer_that_is_made_again_may_have_other_tokens() -> None:
    """Of nodes that start with none: it is drawn, and need not be the one that was lost."""
    async with cluster(decode=2, probe_interval_s=30.0) as running:
        for drift, node in enumerate(running.decode):
            node.names_ahead, node.recomputes, node.drift = 4, True, drift
        running.decode[0].fault = "cut"
        got = await ask(running, "chat", max_tokens=TOKENS)
        failures = await running.metric('baton_leg_failures_total{kind="protocol",role="decode"}')
        await assert_nothing_left(running)
        assert running.decode[1].seen

    assert got.status_code == 200
    assert failures == 0


async def test_tokens_of_a_whole_answer_outlive_a_prefill_node_that_refuses_the_next_leg() -> None:
    """It was not given them, so they are not at fault."""
    async with breaking() as running:
        running.decode[0].names_ahead = 4
        legs = count(1)
        running.prefill[0].fault_of = lambda _: "status" if next(legs) == 2 else ""
        running.prefill[0].status = 400
        got = await ask(running, "chat", max_tokens=TOKENS)
        starts = [seen.params.start for seen in running.decode[1].seen if seen.params is not None]

    assert got.status_code == 200
    assert starts[-1] == (tuple(FIRST_ID + at for at in range(4)),)


async def test_a_whole_answer_outlives_its_prefill_node_once_it_is_made() -> None:
    """The decode node has computed the prompt itself; that the prefill node fails then changes nothing."""
    async with cluster(decode=2, probe_interval_s=30.0, first_tokens="3-alike") as running:
        for node in running.decode:
            node.names_ahead, node.recomputes, node.fault = 4, True, "stall"
        running.prefill[0].fault = "hang"
        asked = asyncio.create_task(running.chat(max_tokens=TOKENS))
        await until_true(lambda: any(node.stalled for node in running.decode))
        await asyncio.sleep(0.1)  # its tokens have been sent, and are read
        await running.prefill[0].stop()
        await running.until_state(running.prefill[0], "down")
        for node in running.decode:
            node.may_go_on.set()
        got = await asked
        legs = sum(len(node.seen) for node in running.decode)

    assert (got.status_code, legs) == (200, 1)


async def test_a_whole_answer_of_which_tokens_do_not_say_all() -> None:
    """It is made again from the start, as before."""
    async with breaking() as running:
        running.decode[0].names_ahead = 4
        got = await ask(running, "completion", max_tokens=TOKENS, logprobs=1)
        headers = [seen.headers for node in running.decode for seen in node.seen]

    assert got.status_code == 200
    assert all("x-baton-token-ids" not in each for each in headers)
