import asyncio
import json
from typing import Any

import pytest

from baton.contracts.kv_transfer import FIELD
from tests.support.cluster import CHAT, COMPLETION, cluster
from tests.support.fake_answers import answer, events

BOTH = pytest.mark.parametrize(
    ("path", "body"), [("/v1/completions", COMPLETION), ("/v1/chat/completions", CHAT)], ids=["completion", "chat"]
)


@BOTH
@pytest.mark.parametrize("stream", [False, True])
async def test_the_client_gets_the_decode_nodes_bytes(path: str, body: dict[str, Any], *, stream: bool) -> None:
    """The body is identical to D's, and the head says how it was made."""
    async with cluster() as running:
        got = await running.http.post(path, json={**body, "stream": stream}, headers={"x-request-id": "mine"})
        maker, taker = running.prefill[0].seen[0], running.decode[0].seen[0]

    assert got.status_code == 200
    assert got.content == (b"".join(events(path, 3)) if stream else answer(path, 3))
    assert got.headers["content-type"].startswith("text/event-stream" if stream else "application/json")
    assert got.headers["x-baton-path"] == "disaggregated"
    assert got.headers["x-request-id"] == "mine"
    assert "x-baton-secret" not in got.headers
    assert maker.params is not None
    assert taker.params is not None
    assert got.headers["x-baton-transfer-id"] == maker.params.transfer_id == taker.params.transfer_id
    assert taker.params.peer == "tcp://127.0.0.1:9100"
    assert (maker.headers["x-request-id"], taker.headers["x-request-id"]) == ("mine-prefill", "mine")


@pytest.mark.parametrize("authorization", ["Bearer key", None])
async def test_authorization_reaches_both_nodes_as_it_was(authorization: str | None) -> None:
    """A key is handed on; no key is not turned into one."""
    async with cluster() as running:
        headers = {"authorization": authorization} if authorization else {}
        await running.http.post("/v1/completions", json=COMPLETION, headers=headers)
        seen = [running.prefill[0].seen[0], running.decode[0].seen[0]]

    assert [request.headers.get("authorization") for request in seen] == [authorization, authorization]


async def test_the_clients_internal_fields_and_headers_reach_nobody() -> None:
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


@pytest.mark.parametrize("extra", [{"prompt_logprobs": 1}, {"best_of": 2}])
async def test_an_uncovered_request_is_computed_on_the_decode_node(extra: dict[str, Any]) -> None:
    """The head says `local` and why; no prefill node hears of it."""
    async with cluster() as running:
        got = await running.complete(**extra)

        assert running.prefill[0].seen == []
    assert (got.status_code, got.headers["x-baton-path"]) == (200, "local")
    assert got.headers["x-baton-reason"]
    assert "x-baton-transfer-id" not in got.headers


@pytest.mark.parametrize(
    ("extra", "several"), [({"n": 2}, False), ({"prompt": ["a"]}, False), ({"prompt": ["a", "b"]}, True)]
)
async def test_several_prompts_are_announced_to_both_nodes(extra: dict[str, Any], *, several: bool) -> None:
    """One signed id for all of them; several answers to one prompt are nothing special."""
    async with cluster() as running:
        got = await running.complete(**extra)
        told = [node.seen[0].params for node in (running.prefill[0], running.decode[0])]

    assert (got.status_code, got.headers["x-baton-path"]) == (200, "disaggregated")
    assert [params.several for params in told if params] == [several, several]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_decode_node_that_recomputed_is_believed(*, stream: bool) -> None:
    """D's own word on how the answer was made replaces our assumption."""
    async with cluster() as running:
        running.decode[0].recomputes = True
        got = await running.complete(stream=stream)

    assert got.headers["x-baton-path"] == "recomputed"
    assert got.headers["x-baton-reason"] == "the peer went silent"


async def test_a_large_prompt_passes() -> None:
    """A body of several megabytes reaches both nodes whole."""
    async with cluster() as running:
        got = await running.complete(prompt="x" * 3_000_000)
        sizes = [len(node.seen[0].body["prompt"]) for node in (*running.prefill, *running.decode)]

    assert (got.status_code, sizes) == (200, [3_000_000, 3_000_000])


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


async def test_sixty_four_requests_at_once_are_all_answered() -> None:
    """Nothing queues for a connection."""
    async with cluster(prefill=2, decode=2) as running:
        for node in running.decode:
            node.first_token_delay_s = 0.3
        got = await asyncio.gather(*(running.complete(stream=True) for _ in range(64)))
        counts = [len(node.seen) for node in (*running.prefill, *running.decode)]

    assert {each.headers["x-baton-path"] for each in got} == {"disaggregated"}
    assert {each.content for each in got} == {b"".join(events("/v1/completions", 3))}
    assert sum(counts) == 128
    assert min(counts) > 24


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
