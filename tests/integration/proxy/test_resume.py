"""Streams that break after the first byte: the client sees one stream, or an error event that says why not."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from baton.contracts.kv_transfer import FIELD
from baton.proxy.resume.rules import SENTENCES, NotResumableReason
from tests.integration.proxy.test_failover import metric, transfer
from tests.integration.proxy.test_failures import assert_nothing_left
from tests.support.cluster import CHAT, COMPLETION, Cluster, cluster, until_true
from tests.support.fake_answers import FIRST_ID, PROMPT_IDS, events
from tests.support.fake_vllm import Fault

TOKENS = 9
GREEDY: dict[str, Any] = {"stream": True, "temperature": 0, "max_tokens": TOKENS}
SEEDED: dict[str, Any] = {"stream": True, "temperature": 0.7, "seed": 5, "max_tokens": TOKENS}
PATHS = {"completion": "/v1/completions", "chat": "/v1/chat/completions"}
BODIES = {"completion": COMPLETION, "chat": CHAT}
KIND = pytest.mark.parametrize("kind", ["completion", "chat"])
FAULT = pytest.mark.parametrize("fault", ["cut", "cut in event", "silent end", "error event"])
WAY = pytest.mark.parametrize("more", [GREEDY, SEEDED], ids=["token_ids", "replay"])


@asynccontextmanager
async def breaking(fault: Fault = "cut", *, decode: int = 2, **settings: Any) -> AsyncIterator[Cluster]:
    """Run a cluster all decode nodes of which break their streams, but for the last one."""
    async with cluster(decode=decode, probe_interval_s=30.0, **settings) as running:
        for number, node in enumerate(running.decode):
            node.created, node.token_delay_s = number + 1, 0.01
            node.fault = fault if number < decode - 1 else ""
        yield running


async def ask(running: Cluster, kind: str, **more: Any) -> httpx.Response:
    """Ask until the answer began on the first node, which breaks it."""
    while True:
        got = await running.http.post(PATHS[kind], json={**BODIES[kind], **more})
        if running.decode[0].seen:
            return got


def whole(kind: str, **more: Any) -> bytes:
    """The stream of a node that does not break, as the client that did not ask for ids gets it."""
    return b"".join(events(PATHS[kind], TOKENS, **more))


@KIND
@FAULT
@WAY
async def test_a_stream_that_breaks_goes_on_as_one(kind: str, fault: Fault, more: dict[str, Any]) -> None:
    """Byte for byte the stream of a node that did not fail: one id, no token twice, none missing, one end."""
    async with breaking(fault) as running:
        got = await ask(running, kind, **more)
        way = "closed" if fault == "silent end" else "token_ids" if more is GREEDY else "replay"
        resumed = await metric(running, f'baton_streams_resumed_total{{way="{way}"}}')
        await assert_nothing_left(running)

    assert got.status_code == 200
    assert got.content == whole(kind)
    assert resumed == 1


@KIND
async def test_it_goes_on_from_the_token_ids_that_were_sent(kind: str) -> None:
    """The other node gets prompt and answer so far as ids, and what is left of the limits; it is planned like any request."""
    async with breaking() as running:
        got = await ask(running, kind, **GREEDY, min_tokens=7, stop_token_ids=[4], cache_salt="s", user="u")
        first, second = running.decode[0].seen[0], running.decode[1].seen[-1]
        maker = {transfer(request): request for node in running.prefill for request in node.seen}[transfer(second)]

    assert got.content == whole(kind)
    assert first.body["return_token_ids"] is True
    sent = len(second.body["prompt"]) - len(PROMPT_IDS)
    assert second.path == "/v1/completions"
    assert 0 < sent < TOKENS
    assert second.body["prompt"] == [*PROMPT_IDS, *(FIRST_ID + at for at in range(sent))]
    assert second.body["max_tokens"] == TOKENS - sent
    assert second.body["min_tokens"] == max(0, 7 - sent)
    kept = {"stop_token_ids": [4], "cache_salt": "s", "temperature": 0, "model": "fake-model", "user": "u"}
    assert {name: second.body[name] for name in kept} == kept
    assert not {"messages", "max_completion_tokens"} & second.body.keys()
    assert maker.body["prompt"] == second.body["prompt"]
    assert transfer(first) != transfer(second)
    assert second.headers["x-request-id"] != first.headers["x-request-id"]


@KIND
@WAY
async def test_a_stream_may_break_twice(kind: str, more: dict[str, Any]) -> None:
    """The second leg is remembered like the first."""
    async with breaking(decode=3) as running:
        got = await ask(running, kind, **more)
        legs = sum(bool(node.seen) for node in running.decode)
        await assert_nothing_left(running)

    assert got.content in [whole(kind, created=number) for number in (1, 2)]
    assert legs >= 2


@KIND
@WAY
async def test_usage_counts_the_prompt_once_and_every_token_once(kind: str, more: dict[str, Any]) -> None:
    """What was given as part of the second prompt is still the answer."""
    async with breaking() as running:
        got = await ask(running, kind, **more, stream_options={"include_usage": True})

    assert got.content == whole(kind, usage=True)


@KIND
async def test_a_client_that_asked_for_ids_gets_them(kind: str) -> None:
    """They are cut out only for those who did not."""
    async with breaking() as running:
        got = await ask(running, kind, **GREEDY, return_token_ids=True)

    assert got.content == whole(kind, ids=True)


async def test_an_answer_whose_last_token_was_sent_is_closed_without_a_node() -> None:
    """Only usage and the end are missing, and both are known."""
    async with breaking("silent end") as running:
        got = await ask(running, "completion", **GREEDY)
        resumed = await metric(running, 'baton_streams_resumed_total{way="closed"}')
        asked = len(running.decode[1].seen)

    assert got.content == whole("completion")
    assert (resumed, asked) == (1, 0) or asked == 1  # 1: the first request went to the healthy node


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"temperature": 0.7}, NotResumableReason.RANDOM),
        ({"temperature": None}, NotResumableReason.RANDOM),
        ({"echo": True, "temperature": 0}, NotResumableReason.ECHO),
        ({"n": 2, "temperature": 0.7, "seed": 1}, NotResumableReason.SEVERAL),
    ],
)
async def test_a_stream_that_cannot_go_on_says_why(more: dict[str, Any], reason: NotResumableReason) -> None:
    """What came, then an error event with the reason, no `[DONE]`; nobody else is asked, and D's bytes were untouched."""
    async with breaking() as running:
        got = await ask(running, "completion", stream=True, max_tokens=TOKENS, **more)
        counted = await metric(running, f'baton_streams_not_resumed_total{{reason="{reason}"}}')
        first = running.decode[0].seen[0]
        await assert_nothing_left(running)

    relayed, _, error = got.content.rpartition(b"data: ")
    assert whole("completion", n=more.get("n", 1)).startswith(relayed)
    assert SENTENCES[reason] in json.loads(error)["error"]["message"]
    assert b"[DONE]" not in got.content
    assert counted == 1
    assert "return_token_ids" not in first.body


@pytest.mark.parametrize(
    ("settings", "more", "reason"),
    [
        ({"resume": "off"}, GREEDY, NotResumableReason.OFF),
        ({"resume": "token_ids"}, SEEDED, NotResumableReason.OFF),
        ({"max_attempts": 1}, GREEDY, NotResumableReason.RETRY_DENIED),
        ({"retry_burst": 1, "decode": 3}, GREEDY, NotResumableReason.RETRY_DENIED),
    ],
)
async def test_settings_decide_what_goes_on(
    settings: dict[str, Any], more: dict[str, Any], reason: NotResumableReason
) -> None:
    """A switch, and the limits of all retries."""
    async with breaking(**settings) as running:
        if "retry_burst" in settings:
            running.decode[2].fault = "cut"
        got = await ask(running, "completion", **more)

    assert SENTENCES[reason] in got.text
    assert b"[DONE]" not in got.content


async def test_without_another_node_the_stream_ends_with_an_error_event() -> None:
    """The failed node itself is not asked."""
    async with breaking(decode=1) as running:
        running.decode[0].fault = "cut"
        got = await ask(running, "completion", **GREEDY)
        asked = len(running.decode[0].seen)

    assert SENTENCES[NotResumableReason.NO_NODE] in got.text
    assert asked == 1


async def test_an_image_in_the_prompt_is_not_turned_into_ids() -> None:
    """Ids alone would lose it."""
    content = [{"type": "text", "text": "What is it?"}, {"type": "image_url", "image_url": {"url": "data:,"}}]
    async with breaking() as running:
        got = await ask(running, "chat", **GREEDY, messages=[{"role": "user", "content": content}])

    assert SENTENCES[NotResumableReason.MEDIA] in got.text


async def test_another_answer_is_not_joined() -> None:
    """A node that answers a seeded request differently ends the stream; nothing wrong is sent."""
    async with breaking() as running:
        running.decode[1].drift = 1
        got = await ask(running, "completion", **SEEDED)

    relayed, _, error = got.content.rpartition(b"data: ")
    assert whole("completion").startswith(relayed)
    assert SENTENCES[NotResumableReason.DIFFERS] in json.loads(error)["error"]["message"]


async def test_a_hundred_streams_survive_the_loss_of_a_node() -> None:
    """Half of them were on it."""
    async with cluster(prefill=2, decode=2) as running:
        for number, node in enumerate(running.decode):
            node.created, node.token_delay_s = number, 0.2
        asked = [asyncio.create_task(ask_once(running)) for _ in range(100)]
        await until_true(lambda: sum(len(node.seen) for node in running.decode) == 100, timeout_s=60)
        await asyncio.sleep(0.6)  # … tokens flow, on both
        await running.decode[0].stop()
        got = await asyncio.gather(*asked)
        resumed = await metric(running, 'baton_streams_resumed_total{way="token_ids"}')

    expected = [whole("completion", created=number) for number in (0, 1)]
    wrong = [each.text for each in got if each.content not in expected]
    assert not wrong
    assert resumed >= 1


async def ask_once(running: Cluster) -> httpx.Response:
    """Ask for a greedy stream, with patience."""
    body = {**COMPLETION, **GREEDY, "max_tokens": TOKENS}
    return await running.http.post(PATHS["completion"], json=body, timeout=100)


async def test_a_refused_client_field_is_not_smuggled_into_the_second_leg() -> None:
    """The client's own transfer parameters stay out of it too."""
    async with breaking() as running:
        got = await ask(running, "completion", **GREEDY, **{FIELD: {"do_remote_prefill": True}})

    assert got.content == whole("completion")
