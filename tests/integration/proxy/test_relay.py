import asyncio
import json
import re
from typing import Any

import httpx

from baton.contracts.kv_transfer import FIELD
from tests.support.cluster import CHAT, COMPLETION, cluster
from tests.support.fake_answers import MODEL, answer, events
from tests.support.fake_typed import typed_stream, typed_whole
from tests.support.strict_node import Seen

BODIES: dict[str, dict[str, Any]] = {
    "/v1/completions": COMPLETION,
    "/v1/chat/completions": CHAT,
    "/v1/messages": {"model": MODEL, "max_tokens": 3, "messages": CHAT["messages"]},
    "/v1/responses": {"model": MODEL, "input": "a"},
}


def sent(path: str, *, stream: bool) -> bytes:
    """What a decode node sends."""
    if path in ("/v1/messages", "/v1/responses"):
        return b"".join(typed_stream(path, 3)) if stream else typed_whole(path, 3)
    return b"".join(events(path, 3)) if stream else answer(path, 3)


async def test_the_client_gets_the_decode_nodes_bytes() -> None:
    """The body is identical to D's, and the head says how it was made; both nodes have the client's key, if it has one."""
    async with cluster() as running:
        for path, body in BODIES.items():
            for stream, headers in ((False, {}), (True, {"authorization": "Bearer key"})):
                headers |= {"x-request-id": "mine"}
                got = await running.http.post(path, json={**body, "stream": stream}, headers=headers)
                assert_relayed(path, got, running.prefill[0].seen.pop(), running.decode[0].seen.pop(), stream=stream)


def assert_relayed(path: str, got: httpx.Response, maker: Seen, taker: Seen, *, stream: bool) -> None:
    told: Any = [maker.params, taker.params]
    assert got.status_code == 200, path
    assert re.sub(rb"resp_[0-9a-f]{32}", b"resp_1", got.content) == sent(path, stream=stream)
    assert got.headers["content-type"].startswith("text/event-stream" if stream else "application/json")
    assert got.headers["x-baton-path"] == "disaggregated"
    assert got.headers["x-request-id"] == "mine"
    assert "x-baton-secret" not in got.headers
    assert got.headers["x-baton-transfer-id"] == told[0].transfer_id == told[1].transfer_id
    assert told[1].peer == "tcp://127.0.0.1:9100"
    assert maker.path == taker.path == path
    assert [each.headers.get("authorization") for each in (maker, taker)] == ["Bearer key" if stream else None] * 2
    assert (maker.headers["x-request-id"], taker.headers["x-request-id"]) == ("mine-prefill", "mine")


async def test_the_clients_internal_fields_and_headers_reach_no_node() -> None:
    """The fake refuses internal headers and unsigned parameters, so that an answer shows that they were removed."""
    async with cluster() as running:
        headers = {"x-baton-path": "local", "x-data-parallel-rank": "3"}
        forged = {**COMPLETION, FIELD: {"do_remote_prefill": True}}
        disaggregated = await running.http.post("/v1/completions", json=forged, headers=headers)
        alone = await running.http.post("/v1/completions", json={**forged, "best_of": 2}, headers=headers)
        seen = running.decode[0].seen

    assert (disaggregated.status_code, alone.status_code) == (200, 200)
    assert seen[0].params is not None
    assert FIELD not in seen[1].body


async def test_an_uncovered_request_is_computed_on_the_decode_node() -> None:
    """The head says `local` and why; no prefill node hears of it."""
    async with cluster() as running:
        background = {"model": MODEL, "input": "a", "background": True}
        got = [await running.complete(prompt_logprobs=1), await running.http.post("/v1/responses", json=background)]

        assert running.prefill[0].seen == []
    for each in got:
        assert (each.status_code, each.headers["x-baton-path"]) == (200, "local")
        assert each.headers["x-baton-reason"]
        assert "x-baton-transfer-id" not in each.headers


async def test_several_prompts_are_announced_to_both_nodes() -> None:
    """One signed id for all of them; several answers to one prompt are nothing special."""
    asked: list[dict[str, Any]] = [{"n": 2}, {"prompt": ["a"]}, {"prompt": ["a", "b"]}]
    async with cluster() as running:
        got = [await running.complete(**extra) for extra in asked]
        told = [[seen.params for seen in node.seen] for node in (running.prefill[0], running.decode[0])]

    assert [(each.status_code, each.headers["x-baton-path"]) for each in got] == [(200, "disaggregated")] * 3
    assert [[params.several for params in each if params] for each in told] == [[False, False, True]] * 2


async def test_a_chunked_upload_with_expect_is_served() -> None:
    """`100 Continue` is sent, and a body without a declared length is read."""
    async with cluster() as running:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(running.url.rsplit(":", 1)[1]))
        writer.write(
            b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\n"
            b"connection: close\r\ntransfer-encoding: chunked\r\n\r\n"
        )
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        body = json.dumps(COMPLETION).encode()
        for part in (body[:7], body[7:], b""):
            writer.write(b"%x\r\n%s\r\n" % (len(part), part))
        got = await reader.read()
        writer.close()
        await writer.wait_closed()

    assert got.startswith(b"HTTP/1.1 200 ")
    assert got.endswith(answer("/v1/completions", 3))


async def test_a_data_parallel_prefill_node_gets_the_rank_whose_address_was_announced() -> None:
    """The request goes to the rank that the decode node will ask for the KV."""
    addresses = ["tcp://127.0.0.1:9100", "tcp://127.0.0.1:9101"]
    async with cluster(described={"control_addresses": addresses, "data_parallel_size": 2}) as running:
        for _ in range(4):
            assert (await running.complete()).status_code == 200
        pairs = zip(running.prefill[0].seen, running.decode[0].seen, strict=True)

        for maker, taker in pairs:
            assert taker.params is not None
            assert taker.params.peer == addresses[int(maker.headers["x-data-parallel-rank"])]
