"""Routes beyond completions and chats on the real stack: passed ones, the document, a node's own; and what is billed."""

from typing import Any

import httpx
import pytest

from baton.contracts.http import LOCAL, NODE_PATH, PATH_HEADER
from baton.contracts.kv_transfer import FIELD
from tests.e2e.client import body_for
from tests.e2e.conftest import Trio
from tests.e2e.stack import Server, Stack

pytestmark = pytest.mark.e2e


def cached_tokens(server: Server, body: dict[str, Any]) -> int:
    """How much of a prompt a server says was cached."""
    usage = server.ask("/v1/completions", body).json()["usage"]
    return int(usage["prompt_tokens_details"]["cached_tokens"])


def test_received_kv_is_not_billed_as_cached(trio: Trio) -> None:
    """A fresh prompt costs all of its tokens; the second time, and with a tail, as much is cached as on one server."""
    fresh = [777, *trio.prompts[14]]
    bodies = [body_for(trio.model, prompt, max_tokens=2) for prompt in (fresh, fresh, [*fresh, 5, 6, 7])]

    ours, plain = ([cached_tokens(server, body) for body in bodies] for server in (trio.proxy, trio.plain))

    assert ours == plain
    assert ours[0] == 0
    assert min(ours[1:]) > 0


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/tokenize", {"prompt": "Who keeps the lighthouse?"}),
        ("/detokenize", {"tokens": [100, 200, 300]}),
        ("/v1/messages/count_tokens", {"messages": [{"role": "user", "content": "Who?"}]}),
        ("/v1/embeddings", {"input": "a"}),
        ("/tokenize", {"prompt": 7}),
    ],
    ids=["tokenize", "detokenize", "count_tokens", "embeddings", "bad"],
)
def test_passed_routes_answer_as_one_server(trio: Trio, path: str, body: dict[str, Any]) -> None:
    """Status and body; where one server lacks the route as well, it is the proxy that says so."""
    ours, plain = (
        httpx.post(f"{server.url}{path}", json={"model": trio.model, **body}, timeout=60)
        for server in (trio.proxy, trio.plain)
    )

    assert ours.status_code == plain.status_code
    if plain.status_code != 404:
        assert ours.json() == plain.json()
        assert ours.headers[PATH_HEADER] == LOCAL


def test_the_document_carries_vllms_schemas(trio: Trio) -> None:
    """Of each route that generates; none of its operator's routes."""
    document = httpx.get(f"{trio.proxy.url}/openapi.json", timeout=60).json()

    schemas = document["components"]["schemas"]
    for name in ("ChatCompletionRequest", "CompletionRequest", "ResponsesRequest", "AnthropicMessagesRequest"):
        assert "properties" in schemas[name], name
    assert "/tokenize" in document["paths"]
    assert "/start_profile" not in document["paths"]


def test_a_node_describes_itself_and_lets_nothing_unsigned_pass(stack: Stack, trio: Trio) -> None:
    """To those with the token; a request without a leg is vLLM's alone, one with a leg of another role is refused."""
    info = trio.decode.info()
    assert (info["role"], info["served_models"], info["max_model_len_tokens"]) == ("decode", [trio.model], 4096)
    assert info["fingerprint"]["dtype"] == "float32"
    assert info["versions"]["vllm"]
    assert httpx.get(trio.decode.url + NODE_PATH, headers={"Authorization": "Bearer x"}).status_code == 401

    body = body_for(trio.model, [5, 6, 7], max_tokens=1)
    assert PATH_HEADER not in trio.decode.ask("/v1/completions", body).headers
    for leg in ({FIELD: {"do_remote_prefill": True}}, stack.leg("prefill")):
        assert httpx.post(f"{trio.decode.url}/v1/completions", json=body | leg).status_code == 403
