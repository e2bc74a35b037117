"""Responses that go on from a stored one, which one decode node has."""

from typing import Any

from tests.support.cluster import cluster
from tests.support.fake_answers import MODEL

RESPONSE: dict[str, Any] = {"model": MODEL, "input": "a"}


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
    """No node that answers has it: the one that is silent may."""
    async with cluster(decode=2) as running:
        running.decode[0].passed["GET", "/v1/responses/resp_9"] = 404, b"application/json", b"{}"
        await running.decode[1].stop()
        await running.until_state(running.decode[1], "down")
        got = await running.http.post("/v1/responses", json={**RESPONSE, "previous_response_id": "resp_9"})

    assert got.status_code == 503
    assert "resp_9" in got.json()["error"]["message"]
