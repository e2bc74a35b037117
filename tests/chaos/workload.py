"""What the clients ask: short prompts in families that share whole blocks, and the right answers to them.

The answers come from a plain vLLM server in float32. A prompt where the two best tokens nearly tie at some point is not
used: it could rightly be answered in two ways.
"""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from baton.deploy.embedded_model.prompts import prompts as listed_prompts
from tests.e2e.client import body_for

BLOCK_TOKENS = 32
BLOCK_BYTES = 128 << 10  # of the embedded model in float32: 8 layers × 2 × 2 heads × 32 values × 32 tokens × 4 B
MAX_PROMPT_TOKENS = 320
ANSWER_TOKENS = 48
MIN_GAP = 0.02  # between the logprobs of the two best tokens
PREFIX_BLOCKS = (1, 2, 4)
REST_TOKENS = (9, 150)  # range of what follows the shared prefix


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """A prompt and what one plain vLLM server answers."""

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]  # of the tokens


def draw_prompts(seed: int, families: int, members: int) -> list[tuple[int, ...]]:
    """Draw `families` × `members` prompts; those of a family begin with the same whole blocks."""
    rng = random.Random(seed)
    documents = [prompt for prompt in listed_prompts() if len(prompt) > MAX_PROMPT_TOKENS]
    drawn: dict[tuple[int, ...], None] = {}
    for family in range(families):
        prefix = _stretch(rng, documents, PREFIX_BLOCKS[family % len(PREFIX_BLOCKS)] * BLOCK_TOKENS)
        for _ in range(members):
            drawn.setdefault((*prefix, *_stretch(rng, documents, rng.randint(*REST_TOKENS))))
    return list(drawn)


def body_of(model: str, prompt: Sequence[int], max_tokens: int, *, stream: bool) -> dict[str, Any]:
    """Return the request: greedy, with token ids and their logprobs."""
    return body_for(model, prompt, max_tokens=max_tokens, logprobs=1, stream=stream)


async def ask_reference(url: str, model: str, prompts: Sequence[Sequence[int]], at_once: int = 8) -> list[Reference]:
    """Ask a plain server for the right answers, and leave out prompts with a near tie."""
    gate = asyncio.Semaphore(at_once)
    unshared = httpx.Limits(max_keepalive_connections=0)  # a busy machine finds idle ones closed by the server
    async with httpx.AsyncClient(timeout=120, limits=unshared) as client:

        async def one(prompt: Sequence[int]) -> Reference | None:
            async with gate:
                body = body_of(model, prompt, ANSWER_TOKENS, stream=False) | {"logprobs": 2}
                response = await client.post(f"{url}/v1/completions", json=body)
                response.raise_for_status()
                return _read(prompt, response.json()["choices"][0])

        return [found for found in await asyncio.gather(*map(one, prompts)) if found is not None]


def _read(prompt: Sequence[int], choice: dict[str, Any]) -> Reference | None:
    for best in choice["logprobs"]["top_logprobs"]:
        first, second = sorted(best.values(), reverse=True)[:2]
        if first - second < MIN_GAP:
            return None
    return Reference(
        prompt=tuple(prompt),
        tokens=tuple(choice["token_ids"]),
        logprobs=tuple(choice["logprobs"]["token_logprobs"]),
    )


def _stretch(rng: random.Random, documents: Sequence[Sequence[int]], tokens: int) -> tuple[int, ...]:
    document = rng.choice(documents)
    start = rng.randrange(len(document) - tokens)
    return tuple(document[start : start + tokens])
