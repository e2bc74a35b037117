"""What the proxy itself refuses, in OpenAI's shape, and as the official client understands it; answers of real nodes: `tests/e2e/test_clients.py`, `test_api.py`."""

import asyncio

import openai
import pytest

from tests.support.cluster import COMPLETION, cluster
from tests.support.fake_answers import MODEL


async def test_requests_that_cannot_be_served_reach_no_node() -> None:
    """The error says what is wrong; no node is bothered."""
    kinds = {400: "BadRequestError", 404: "NotFoundError", 413: "invalid_request_error"}
    wrong = {
        b"not json": 400,
        b"": 400,
        b"[]": 400,
        b'{"stream":true,': 400,
        b"\xff\xfe": 400,
        b'{"model":"fake-model"}': 400,
        b'{"model":"fake-model","prompt":7}': 400,
        b'{"model":"unheard of","prompt":"a"}': 404,
        b'{"model":"fake-model","prompt":"' + b"a" * 5000 + b'"}': 413,
    }
    async with cluster(max_body_bytes=4096) as running:
        for content, status in wrong.items():
            got = await running.http.post("/v1/completions", content=content, headers={"x-request-id": "mine"})
            assert (got.status_code, got.json()["error"]["code"]) == (status, status), content[:40]
            assert got.json()["error"]["type"] == kinds[status], content[:40]
            assert got.headers["x-request-id"] == "mine"

        assert running.prefill[0].seen == running.decode[0].seen == []


async def test_unknown_paths_and_wrong_methods_are_in_openais_shape() -> None:
    """Routes that FastAPI refuses answer like those that we refuse."""
    wrong = {
        ("GET", "/v1/completions"): 405,
        ("DELETE", "/v1/chat/completions"): 405,
        ("POST", "/v1/unheard/of"): 404,
        ("GET", "/"): 404,
        ("GET", "/v1/models/unheard-of"): 404,
    }
    async with cluster() as running:
        for (method, path), status in wrong.items():
            got = await running.http.request(method, path, json=COMPLETION)
            assert (got.status_code, got.json()["error"]["code"]) == (status, status), path
            kind = "NotFoundError" if "models" in path else "invalid_request_error"
            assert got.json()["error"]["type"] == kind, path
            assert got.headers.get("allow") == ("POST" if status == 405 else None), path


@pytest.mark.parametrize("how", [b"1.1\r\nconnection: close", b"1.0"])
async def test_a_body_that_is_too_large_is_no_reset(how: bytes) -> None:
    """Also where the connection is closed afterwards, as nginx has it: what is unread then would reset it."""
    size = 4 << 20
    async with cluster(max_body_bytes=1 << 20) as running, asyncio.timeout(30):
        reader, writer = await asyncio.open_connection("127.0.0.1", int(running.url.rsplit(":", 1)[1]))
        writer.write(b"POST /v1/completions HTTP/%s\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % (how, size))
        writer.write(b"x" * size)
        await writer.drain()
        answer = await reader.read()
        writer.close()

    assert answer.startswith(b"HTTP/1.1 413 ")


async def test_the_openai_client_understands_errors() -> None:
    """An unknown model is an exception of its own; a broken stream raises, it does not end the loop."""
    async with (
        cluster() as running,
        openai.AsyncOpenAI(base_url=f"{running.url}/v1", api_key="k", max_retries=0) as client,
    ):
        assert [model.id async for model in client.models.list()] == [MODEL]
        with pytest.raises(openai.NotFoundError, match="does not exist"):
            await client.completions.create(model="unheard of", prompt="a")
        running.decode[0].fault, running.decode[0].token_delay_s = "cut", 0.02
        with pytest.raises(openai.APIError, match="the decode node failed while it was answering"):
            async for _ in await client.completions.create(model=MODEL, prompt="a", stream=True):
                pass
        await running.until_ready()
        with pytest.raises(openai.APIError, match="the decode node failed while it was answering"):
            async for _ in await client.responses.create(model=MODEL, input="a", stream=True):
                pass
