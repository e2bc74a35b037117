"""What a client sees of the real stack beyond a plain completion."""

from typing import Any

import httpx
import openai
import pytest

from contracts.http import DISAGGREGATED, LOCAL, PATH_HEADER, REASON_HEADER
from tests.e2e.client import body_for
from tests.e2e.conftest import Trio

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]


def ask(url: str, body: dict[str, Any]) -> httpx.Response:
    """POST a completion."""
    return httpx.post(f"{url}/v1/completions", json=body, timeout=60)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"n": 2, "temperature": 0.7, "seed": 3}, "n is greater than 1"),
        ({"prompt": [[5, 6, 7], [8, 9, 10, 11]]}, "several prompts"),
        ({"prompt_logprobs": 1}, "prompt logprobs"),
    ],
    ids=["n", "batch", "prompt_logprobs"],
)
def test_what_the_hand_off_does_not_cover_is_computed_on_the_decode_node(
    trio: Trio, change: dict[str, Any], reason: str
) -> None:
    """The answer is one vLLM server's, and a header says why it was not disaggregated."""
    body = body_for(trio.model, trio.prompts[5]) | change

    ours, plain = ask(trio.proxy.url, body), ask(trio.plain.url, body)

    assert ours.status_code == 200, ours.text
    assert ours.headers[PATH_HEADER] == LOCAL
    assert reason in ours.headers[REASON_HEADER]
    assert [choice["token_ids"] for choice in ours.json()["choices"]] == [
        choice["token_ids"] for choice in plain.json()["choices"]
    ]


def test_the_openai_client_streams_a_chat(trio: Trio) -> None:
    """Streamed pieces add up to the unstreamed answer, which is one vLLM server's."""
    messages: Any = [{"role": "user", "content": "Who keeps the lighthouse in spring?"}]
    texts = []
    for server in (trio.proxy, trio.plain):
        with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
            whole = client.chat.completions.create(model=trio.model, messages=messages, max_tokens=24, temperature=0)
            pieces = client.chat.completions.create(
                model=trio.model, messages=messages, max_tokens=24, temperature=0, stream=True
            )
            streamed = "".join(piece.choices[0].delta.content or "" for piece in pieces if piece.choices)
        texts += [whole.choices[0].message.content, streamed]

    assert texts[0]
    assert len(set(texts)) == 1


def test_a_clients_own_transfer_parameters_are_dropped(trio: Trio) -> None:
    """Nobody outside can make a node push KV: the request is served as if they were not there."""
    body = body_for(trio.model, trio.prompts[5], kv_transfer_params={"baton": {"v": 1, "id": "f" * 32}})

    answer = ask(trio.proxy.url, body)

    assert answer.status_code == 200
    assert answer.headers[PATH_HEADER] == DISAGGREGATED


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_a_node_refuses_unsigned_parameters(trio: Trio, role: str) -> None:
    """OpenAI-shaped, before vLLM sees the request."""
    server = trio.prefill if role == "prefill" else trio.decode

    answer = ask(server.url, body_for(trio.model, [5, 6, 7], kv_transfer_params={"baton": {"v": 1}}))

    assert answer.status_code == 403
    assert "signed" in answer.json()["error"]["message"] or "transfer id" in answer.json()["error"]["message"]


def test_a_first_token_that_ends_the_answer_is_a_good_prefill(trio: Trio) -> None:
    """P stops with its only token and still hands the prompt over; D answers like one server."""
    first = trio.reference[5].tokens[0]
    body = body_for(trio.model, trio.prompts[5]) | {"stop_token_ids": [first], "ignore_eos": False}

    ours, plain = ask(trio.proxy.url, body), ask(trio.plain.url, body)

    assert ours.headers[PATH_HEADER] == DISAGGREGATED
    assert ours.json()["choices"][0]["token_ids"] == plain.json()["choices"][0]["token_ids"]
    assert ours.json()["choices"][0]["finish_reason"] == "stop"
