"""The KV of an answer that has ended goes back to the prefill node that had its prompt."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from baton.proxy.handler import answer_returns
from tests.integration.proxy.test_failures import assert_nothing_left
from tests.integration.proxy.test_moving import legs, params
from tests.support.cluster import COMPLETION, Cluster, cluster
from tests.support.fake_answers import FIRST_ID

TOKENS = 40  # more than a block
RETURNED, FAILED, DROPPED = (
    f'baton_answers_returned_total{{result="{how}"}}' for how in ("returned", "failed", "dropped")
)


@asynccontextmanager
async def returning(**settings: Any) -> AsyncIterator[Cluster]:
    settings = {"both_ways": True, "return_answers": "on", **settings}
    described = {"both_ways": settings["both_ways"]}
    async with cluster(first_tokens="3-alike", described=described, **settings) as running:
        for node in running.decode:
            node.names_ahead = TOKENS
        yield running


@pytest.mark.parametrize("streamed", [True, False], ids=["streamed", "whole"])
async def test_an_answer_returns_to_the_node_that_had_its_prompt(streamed: bool) -> None:
    """All its tokens but the last, by a transfer from the decode node; the prefill node's own token is thrown away."""
    async with returning(prefill=2) as running:
        await running.complete(stream=streamed, max_tokens=TOKENS)
        await running.until_metric(RETURNED, 1)
        await assert_nothing_left(running)
        (source,), destination = running.decode, next(node for node in running.prefill if node.seen)

    (sent,), (received,) = legs(source, "prefill"), legs(destination, "decode")
    assert params(sent)["id"] == params(received)["id"]
    assert params(sent)["start"] == params(received)["start"] == [[FIRST_ID + at for at in range(TOKENS - 1)]]
    assert params(received)["kv_only"]
    assert received.body["max_tokens"] == TOKENS


@pytest.mark.parametrize(
    "settings",
    [
        {"both_ways": False},
        {"return_answers": "off"},
        {"return_answers": "auto"},  # nothing is known of the nodes' times
    ],
    ids=["nodes", "off", "auto"],
)
async def test_settings_with_which_no_answer_returns(settings: dict[str, Any]) -> None:
    async with returning(**settings) as running:
        await running.complete(stream=True, max_tokens=TOKENS)
        await assert_nothing_left(running)
        seen = len(running.prefill[0].seen), len(running.decode[0].seen)

    assert seen == (1, 1)


async def test_answers_that_do_not_return() -> None:
    """They are no block long, have several choices, or are not to: their clients say so."""
    asked: list[tuple[dict[str, Any], dict[str, str]]] = [
        ({"max_tokens": 16}, {}),
        ({"n": 2}, {}),
        ({}, {"x-return-answer": "off"}),
    ]
    async with returning() as running:
        for more, headers in asked:
            body = {**COMPLETION, "max_tokens": TOKENS, "stream": True, **more}
            await running.http.post("/v1/completions", json=body, headers=headers)
        await assert_nothing_left(running)
        seen = len(running.prefill[0].seen), len(running.decode[0].seen)

    assert seen == (3, 3)


@pytest.mark.parametrize(("role", "fault"), [("prefill", "drop"), ("decode", "status")])
async def test_a_return_that_fails_is_counted(role: str, fault: Any) -> None:
    async with returning(breaker_failures=100) as running:
        node = running.decode[0] if role == "prefill" else running.prefill[0]
        node.fault_of = lambda seen: fault if seen in legs(node, role) else ""
        got = await running.complete(stream=True, max_tokens=TOKENS)
        await running.until_metric(FAILED, 1)
        await assert_nothing_left(running)

    assert got.status_code == 200


async def test_few_returns_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """One for each destination; the others wait. When too many do, the oldest are dropped."""
    waiting, more = 4, 3
    monkeypatch.setattr(answer_returns, "MAX_WAIT_S", 1000.0)
    monkeypatch.setattr(answer_returns, "MOST_WAITING", waiting)
    async with returning(stall_timeout_s=60) as running:
        node = running.prefill[0]
        node.fault_of = lambda seen: "hang" if seen in legs(node, "decode") else ""
        await asyncio.gather(*(running.complete(stream=True, max_tokens=TOKENS) for _ in range(1 + waiting + more)))
        await running.until_metric(DROPPED, more)
        under_way = len(legs(node, "decode"))

    assert under_way == 1
