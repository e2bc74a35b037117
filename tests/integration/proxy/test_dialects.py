"""Messages and responses: disaggregated as chats are, byte for byte, with their own ends and errors."""

import json
import re
from typing import Any

import anthropic
import openai
import pytest

from tests.support.cluster import cluster, until_true
from tests.support.fake_answers import MODEL
from tests.support.fake_typed import typed_stream, typed_whole

TEXT = " wörd0 wörd1 wörd2"
MESSAGE: dict[str, Any] = {"model": MODEL, "max_tokens": 3, "messages": [{"role": "user", "content": "a"}]}
RESPONSE: dict[str, Any] = {"model": MODEL, "input": "a"}
BOTH = pytest.mark.parametrize(
    ("path", "body"), [("/v1/messages", MESSAGE), ("/v1/responses", RESPONSE)], ids=["messages", "responses"]
)


@BOTH
@pytest.mark.parametrize("stream", [False, True])
async def test_the_client_gets_the_decode_nodes_bytes(path: str, body: dict[str, Any], *, stream: bool) -> None:
    """Both legs are sent on the API's own route; the fake refuses a prefill leg that asks for more than the prompt."""
    async with cluster() as running:
        got = await running.http.post(path, json={**body, "stream": stream})
        maker, taker = running.prefill[0].seen[0], running.decode[0].seen[0]

    assert got.status_code == 200, got.text
    sent = re.sub(rb"resp_[0-9a-f]{32}", b"resp_1", got.content)
    assert sent == (b"".join(typed_stream(path, 3)) if stream else typed_whole(path, 3))
    assert got.headers["x-baton-path"] == "disaggregated"
    assert (maker.path, taker.path) == (path, path)
    assert maker.params is not None
    assert taker.params is not None
    assert maker.params.transfer_id == taker.params.transfer_id


@BOTH
async def test_a_stream_that_was_cut_ends_with_the_apis_own_error_event(path: str, body: dict[str, Any]) -> None:
    """It is not resumed: only chats and completions are."""
    async with cluster(decode=2) as running:
        for node in running.decode:
            node.fault = "silent end"
        got = await running.http.post(path, json={**body, "stream": True, "temperature": 0})

    last = got.content.removesuffix(b"\n\n").split(b"\n\n")[-1]
    assert last.startswith(b"event: error\ndata: ")
    told = json.loads(last.partition(b"data: ")[2])
    assert told["type"] == "error"
    assert "its stream ended before its last event" in told["error"]["message"]


@BOTH
async def test_a_failed_decode_node_is_made_good_on_another(path: str, body: dict[str, Any]) -> None:
    """Before the first byte, as for chats."""
    async with cluster(decode=2) as running:
        running.decode[0].fault = "drop"
        got = [await running.http.post(path, json=body) for _ in range(4)]

    assert {answer.status_code for answer in got} == {200}


async def test_the_anthropic_client_works_unmodified() -> None:
    """Whole, streamed, a count of tokens, and errors of ours in its own classes."""
    async with (
        cluster() as running,
        anthropic.AsyncAnthropic(base_url=running.url, api_key="k", max_retries=0) as client,
    ):
        running.decode[0].passed["POST", "/v1/messages/count_tokens"] = 200, b"application/json", b'{"input_tokens":5}'
        messages: Any = MESSAGE["messages"]
        whole = await client.messages.create(model=MODEL, max_tokens=3, messages=messages)
        assert [block.text for block in whole.content if block.type == "text"] == [TEXT]
        async with client.messages.stream(model=MODEL, max_tokens=3, messages=messages) as stream:
            assert "".join([text async for text in stream.text_stream]) == TEXT
        assert (await client.messages.count_tokens(model=MODEL, messages=messages)).input_tokens == 5
        with pytest.raises(anthropic.NotFoundError, match="does not exist"):
            await client.messages.create(model="unheard of", max_tokens=3, messages=messages)


async def test_the_openai_client_asks_for_responses_unmodified() -> None:
    """Whole and streamed; a stream that breaks raises."""
    async with (
        cluster() as running,
        openai.AsyncOpenAI(base_url=f"{running.url}/v1", api_key="k", max_retries=0) as client,
    ):
        assert (await client.responses.create(model=MODEL, input="a")).output_text == TEXT
        stream = await client.responses.create(model=MODEL, input="a", stream=True)
        pieces = [event.delta async for event in stream if event.type == "response.output_text.delta"]
        assert "".join(pieces) == TEXT
        running.decode[0].fault, running.decode[0].token_delay_s = "cut", 0.02
        broken = await client.responses.create(model=MODEL, input="a", stream=True)
        with pytest.raises(openai.APIError, match="the decode node failed while it was answering"):
            async for _ in broken:
                pass


@pytest.mark.parametrize(
    ("more", "reason"),
    [({"background": True}, "background"), ({"tools": [{"type": "code_interpreter"}]}, "built-in tools")],
)
async def test_what_one_node_has_to_serve_says_why(more: dict[str, Any], reason: str) -> None:
    """No prefill leg is sent."""
    async with cluster() as running:
        got = await running.http.post("/v1/responses", json={**RESPONSE, **more})
        assert running.prefill[0].seen == []

    assert got.headers["x-baton-path"] == "local"
    assert reason in got.headers["x-baton-reason"]


async def test_a_conversation_goes_on_where_it_is_stored() -> None:
    """The proxy asks the decode nodes who has it; retrieving and cancelling find the same node."""
    stored = ("GET", "/v1/responses/resp_9")
    async with cluster(decode=3) as running:
        holder = running.decode[1]
        for node in running.decode:
            node.passed[stored] = (
                (200, b"application/json", b'{"id":"resp_9"}') if node is holder else (404, b"a/b", b"")
            )
        holder.passed["POST", "/v1/responses/resp_9/cancel"] = 200, b"application/json", b"{}"

        got = [
            await running.http.post("/v1/responses", json={**RESPONSE, "previous_response_id": "resp_9"})
            for _ in range(3)
        ]
        retrieved = await running.http.get("/v1/responses/resp_9")
        cancelled = await running.http.post("/v1/responses/resp_9/cancel")
        metrics = (await running.http.get("/metrics")).text

        assert [len(node.seen) for node in running.decode] == [0, 3, 0]
        assert running.prefill[0].seen == []
    assert {answer.headers["x-baton-path"] for answer in got} == {"local"}
    assert (retrieved.json(), cancelled.status_code) == ({"id": "resp_9"}, 200)
    assert 'endpoint="/v1/responses/{response_id}"' in metrics
    assert "resp_9" not in metrics


async def test_a_conversation_whose_node_may_be_gone_is_refused() -> None:
    """Nobody who answers has it: the one that does not may."""
    async with cluster(decode=2) as running:
        running.decode[0].passed["GET", "/v1/responses/resp_9"] = 404, b"application/json", b"{}"
        await running.decode[1].stop()

        async def noticed() -> bool:
            return any(node["state"] == "down" for node in (await running.http.get("/ready")).json()["nodes"])

        await until_true(noticed)
        got = await running.http.post("/v1/responses", json={**RESPONSE, "previous_response_id": "resp_9"})

    assert got.status_code == 503
    assert "resp_9" in got.json()["error"]["message"]
