"""What a client sees of the real stack beyond a plain completion."""

import json
from typing import Any

import httpx
import openai
import pytest

from baton.contracts.http import DISAGGREGATED, LOCAL, PATH_HEADER, REASON_HEADER
from tests.e2e.client import body_for
from tests.e2e.conftest import Trio
from tests.e2e.waiting import GIVEN_BACK_WITHIN_S, settle

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]


def ask(url: str, body: dict[str, Any]) -> httpx.Response:
    """POST a completion."""
    return httpx.post(f"{url}/v1/completions", json=body, timeout=60)


def test_what_the_hand_off_does_not_cover_is_computed_on_the_decode_node(trio: Trio) -> None:
    """The answer is one vLLM server's, and a header says why it was not disaggregated."""
    body = body_for(trio.model, trio.prompts[5]) | {"prompt_logprobs": 1}

    ours, plain = ask(trio.proxy.url, body), ask(trio.plain.url, body)

    assert ours.headers[PATH_HEADER] == LOCAL
    assert "prompt logprobs" in ours.headers[REASON_HEADER]
    assert tokens_of(ours) == tokens_of(plain)


@pytest.mark.parametrize("streams", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize(
    ("prompts", "n"),
    [([0], 3), ([1, 2, 3], 1), ([4, 5, 4], 2)],
    ids=["n", "batch", "batch-with-a-twin"],
)
def test_each_prompt_is_computed_and_transferred_once(trio: Trio, prompts: list[int], n: int, streams: bool) -> None:
    """However many answers are wanted of however many prompts: the tokens are one server's, and D computes tails only.

    Of a prompt each answer of a stream receives the last block, with its own first token.
    """
    longest = sorted(trio.prompts, key=len, reverse=True)
    wanted = [[100 + n, 200 + streams, *longest[index]] for index in prompts]  # nobody has asked for these before
    prompt = wanted if len(wanted) > 1 else wanted[0]
    body = body_for(trio.model, []) | {"prompt": prompt, "n": n, "temperature": 0.7, "top_k": 1, "stream": streams}
    distinct = len(set(prompts))
    before = counts(trio)

    ours = ask(trio.proxy.url, body)

    after = counts(trio)
    assert ours.headers[PATH_HEADER] == DISAGGREGATED, ours.text
    assert tokens_of(ours) == tokens_of(ask(trio.plain.url, body))
    made = {name: after[name] - before[name] for name in after}
    transfers = n if streams and len(prompts) == 1 else distinct
    block_tokens = trio.decode.transfers()["scheduler"]["block_size"]
    assert (made["prefill"], made["loaded"], made["shared"]) == (transfers, transfers, len(prompts) * n - distinct)
    received = (
        sum(len(tokens) for tokens in {tuple(tokens) for tokens in wanted}) + (transfers - distinct) * block_tokens
    )
    assert made["received"] <= received
    assert made["computed"] <= sum((len(tokens) - 1) % block_tokens + 1 for tokens in wanted) * n
    assert made["computed"] < sum(map(len, wanted)) * n
    for server in (trio.prefill, trio.decode):
        settle(server, GIVEN_BACK_WITHIN_S)


def counts(trio: Trio) -> dict[str, int]:
    """Transfers on either node, siblings, and prompt tokens that D computed."""
    there, here = (server.transfers()["scheduler"]["totals"] for server in (trio.prefill, trio.decode))
    return {
        "prefill": there["transfers"],
        "loaded": here["loaded"],
        "shared": here["shared"],
        "received": here["tokens_received"],
        "computed": here["prompt_tokens_computed"],
    }


def tokens_of(response: httpx.Response) -> dict[int, list[int]]:
    """Token ids by choice, of a whole answer or of a stream."""
    assert response.status_code == 200, response.text
    if response.headers["content-type"].startswith("application/json"):
        return {choice["index"]: choice["token_ids"] for choice in response.json()["choices"]}
    found: dict[int, list[int]] = {}
    for line in response.text.splitlines():
        if line.startswith("data: {"):
            for choice in json.loads(line.removeprefix("data: "))["choices"]:
                found.setdefault(choice["index"], []).extend(choice["token_ids"] or [])
    return found


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


def test_a_first_token_that_ends_the_answer_is_a_good_prefill(trio: Trio) -> None:
    """P stops with its only token and still hands the prompt over; D answers like one server."""
    first = trio.reference[5].tokens[0]
    body = body_for(trio.model, trio.prompts[5]) | {"stop_token_ids": [first], "ignore_eos": False}

    ours, plain = ask(trio.proxy.url, body), ask(trio.plain.url, body)

    assert ours.headers[PATH_HEADER] == DISAGGREGATED
    assert ours.json()["choices"][0]["token_ids"] == plain.json()["choices"][0]["token_ids"]
    assert ours.json()["choices"][0]["finish_reason"] == "stop"
