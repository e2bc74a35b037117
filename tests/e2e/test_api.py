"""Several prompts, and several answers to one, on the real stack."""

import json

import httpx
import pytest

from baton.contracts.http import DISAGGREGATED, PATH_HEADER
from tests.e2e.client import body_for
from tests.e2e.conftest import Trio
from tests.e2e.waiting import GIVEN_BACK_WITHIN_S, settle

pytestmark = pytest.mark.e2e


COMPLETIONS = "/v1/completions"


@pytest.mark.parametrize("streams", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize(("prompts", "n"), [([14], 3), ([10, 12, 10], 2)], ids=["n", "batch-with-a-twin"])
def test_each_prompt_is_computed_and_transferred_once(trio: Trio, prompts: list[int], n: int, streams: bool) -> None:
    """However many answers are wanted of however many prompts: the tokens are one server's, and D computes tails only.

    Of a prompt each answer of a stream receives the last block, with its own first token.
    """
    wanted = [[100 + n, 200 + streams, *trio.prompts[index]] for index in prompts]  # no earlier request had these
    prompt = wanted if len(wanted) > 1 else wanted[0]
    body = body_for(trio.model, []) | {"prompt": prompt, "n": n, "temperature": 0.7, "top_k": 1, "stream": streams}
    distinct = len(set(prompts))
    before = counts(trio)

    ours = trio.proxy.ask(COMPLETIONS, body)

    after = counts(trio)
    assert ours.headers[PATH_HEADER] == DISAGGREGATED, ours.text
    assert tokens_of(ours) == tokens_of(trio.plain.ask(COMPLETIONS, body))
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
    if response.headers["content-type"].startswith("application/json"):
        return {choice["index"]: choice["token_ids"] for choice in response.json()["choices"]}
    found: dict[int, list[int]] = {}
    for line in response.text.splitlines():
        if line.startswith("data: {"):
            for choice in json.loads(line.removeprefix("data: "))["choices"]:
                found.setdefault(choice["index"], []).extend(choice["token_ids"] or [])
    return found
