"""Routes that one node serves whole; and responses that go on from a stored one, which one decode node has."""

from typing import Any

from tests.support.cluster import Cluster, cluster, until_true
from tests.support.fake_answers import MODEL

JSON = b"application/json"


async def probed(running: Cluster) -> None:
    """Wait until the proxy has asked every node what it is, once more."""
    nodes = (*running.prefill, *running.decode)
    before = [node.probes for node in nodes]
    await until_true(lambda: all(node.probes > count + 1 for node, count in zip(nodes, before, strict=True)))


async def test_a_passed_request_reaches_a_node_as_it_came() -> None:
    """Body, kind of body, query and headers; the answer comes back as it is, with a header that says how."""
    async with cluster() as running:
        running.decode[0].passed["POST", "/v1/audio/transcriptions"] = 200, b"text/vtt", b"WEBVTT"
        got = await running.http.post(
            "/v1/audio/transcriptions?a=1&b=%20",
            content=b"\x00\x01--x",
            headers={
                "content-type": "multipart/form-data; boundary=x",
                "authorization": "Bearer k",
                "x-baton-path": "a",
            },
        )
        [(method, path, query, headers, body)] = running.decode[0].was_passed

    assert (method, path, query, body) == ("POST", "/v1/audio/transcriptions", "a=1&b=%20", b"\x00\x01--x")
    assert headers["content-type"] == "multipart/form-data; boundary=x"
    assert headers["authorization"] == "Bearer k"
    assert "x-baton-path" not in headers
    assert (got.status_code, got.content, got.headers["content-type"]) == (200, b"WEBVTT", "text/vtt")
    assert got.headers["x-engine"] == "yes"
    assert got.headers["x-baton-path"] == "local"
    assert got.headers["x-request-id"] == headers["x-request-id"]


async def test_a_route_that_no_node_has_is_not_found() -> None:
    """In OpenAI's shape, and it says why; another method is refused as such."""
    async with cluster() as running:
        for node in (*running.prefill, *running.decode):
            node.change(routes=["/tokenize"])
        await probed(running)
        got = await running.http.post("/v1/embeddings", json={"model": MODEL, "input": "a"})
        method = await running.http.get("/v1/embeddings")

    assert got.status_code == 404
    assert "no node of this cluster serves this route" in got.json()["error"]["message"]
    assert method.status_code == 405


async def test_a_nodes_error_comes_back_as_it_is() -> None:
    """Whatever its shape; a 5xx only if no other node does better."""
    async with cluster() as running:
        for status in (400, 422, 501, 500):
            running.decode[0].passed["POST", "/tokenize"] = status, b"text/plain", b"no"
            running.decode[0].change(routes=None)
            await running.until_ready()
            got = await running.http.post("/tokenize", json={"model": MODEL, "prompt": "a"})
            assert (got.status_code, got.content) == (status, b"no")


async def test_another_node_is_asked_if_one_fails() -> None:
    """It answered nothing, so that nothing was done twice."""
    async with cluster(decode=2) as running:
        for node in running.decode:
            node.passed["POST", "/tokenize"] = 200, JSON, b"{}"
        running.decode[0].passed["POST", "/tokenize"] = 500, JSON, b"{}"
        got = [await running.http.post("/tokenize", json={"model": MODEL, "prompt": "a"}) for _ in range(4)]

    assert {answer.status_code for answer in got} == {200}


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
