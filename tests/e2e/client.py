"""A client that asks for token ids and logprobs, so that answers can be compared exactly."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

import httpx

from baton.contracts.http import PATH_HEADER, REASON_HEADER, TRANSFER_HEADER

ANSWER_TOKENS = 24
TOP_LOGPROBS = 5
LOGPROB_TOLERANCE = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    tokens: tuple[int, ...]
    top_logprobs: tuple[dict[str, float], ...]  # per position, "token_id:N" → logprob
    cached_tokens: int
    prompt_tokens: int = 0  # by `usage`
    path: str = ""
    reason: str = ""
    transfer_id: str = ""
    headers: dict[str, str] = field(default_factory=dict)


def body_for(model: str, prompt: Sequence[int], **more: Any) -> dict[str, Any]:
    """The request: greedy, `ANSWER_TOKENS` long whatever the model says, ids and logprobs included."""
    return {
        "model": model,
        "prompt": list(prompt),
        "max_tokens": ANSWER_TOKENS,
        "temperature": 0,
        "ignore_eos": True,
        "logprobs": TOP_LOGPROBS,
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
    } | more


async def complete(client: httpx.AsyncClient, url: str, model: str, prompt: Sequence[int], **more: Any) -> Answer:
    """Ask one server for a completion.

    Raises:
        httpx.HTTPStatusError: the server did not answer 200.
    """
    response = await client.post(f"{url}/v1/completions", json=body_for(model, prompt, **more))
    if response.status_code != 200:
        raise httpx.HTTPStatusError(response.text, request=response.request, response=response)
    choice = response.json()["choices"][0]
    details = response.json()["usage"].get("prompt_tokens_details") or {}
    return Answer(
        tokens=tuple(choice["token_ids"]),
        top_logprobs=tuple(choice["logprobs"]["top_logprobs"]),
        cached_tokens=details.get("cached_tokens") or 0,
        prompt_tokens=response.json()["usage"]["prompt_tokens"],
        path=response.headers.get(PATH_HEADER, ""),
        reason=response.headers.get(REASON_HEADER, ""),
        transfer_id=response.headers.get(TRANSFER_HEADER, ""),
        headers=dict(response.headers),
    )


def difference(reference: Answer, answer: Answer) -> str:
    """Say how an answer differs from the reference: token ids exactly, logprobs within tolerance; "" if it does not."""
    if reference.prompt_tokens != answer.prompt_tokens:
        return f"usage counts {answer.prompt_tokens} prompt tokens, not {reference.prompt_tokens}"
    if reference.tokens != answer.tokens:
        at = next(i for i, pair in enumerate(zip(reference.tokens, answer.tokens, strict=False)) if pair[0] != pair[1])
        return f"token {at} is {answer.tokens[at]}, not {reference.tokens[at]}"
    if len(answer.top_logprobs) != len(reference.top_logprobs):
        return "another number of logprobs"
    worst = worst_logprob(reference, answer)
    return f"a logprob differs by {worst:.2e}" if worst > LOGPROB_TOLERANCE else ""


def worst_logprob(reference: Answer, answer: Answer) -> float:
    """The largest difference of a logprob; rank by rank, since near ties may swap names."""
    worst = 0.0
    for ours, theirs in zip(answer.top_logprobs, reference.top_logprobs, strict=True):
        ranks = zip(sorted(ours.values()), sorted(theirs.values()), strict=False)
        named = ((ours[name], theirs[name]) for name in ours.keys() & theirs.keys())
        worst = max(worst, *(abs(a - b) for a, b in [*ranks, *named]))
    return worst


def choice_difference(want: dict[str, Any], got: dict[str, Any], known: int = 0) -> str:
    """Say in what one answer differs: tokens and ends exactly, logprobs within a tolerance, those of the first `known` not at all."""
    for key in ("token_ids", "finish_reason", "stop_reason", "text"):
        if want.get(key) != got.get(key):
            return f"{key} {got.get(key)} in place of {want.get(key)}"
    ours, theirs = (got.get("logprobs") or {}), (want.get("logprobs") or {})
    pairs = list(zip_longest(ours.get("token_logprobs") or [], theirs.get("token_logprobs") or []))
    if any(a is None or b is None or abs(a - b) > LOGPROB_TOLERANCE for a, b in pairs[known:]):
        return "other logprobs"
    return "" if len(want.get("prompt_logprobs") or []) == len(got.get("prompt_logprobs") or []) else "prompt logprobs"
