"""What the clients ask: short prompts in families that share whole blocks, or images, and the right answers to them.

The answers come from a plain vLLM server in float32. A prompt where the two best tokens nearly tie at some point is not
used: it could rightly be answered in two ways.
"""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import httpx

from tests.e2e.client import body_for
from tests.matrix import media
from tests.matrix.media import Question
from tests.support.listed_prompts import prompts as listed_prompts

BLOCK_TOKENS = 32
BLOCK_BYTES = 128 << 10  # of the embedded model in float32: 8 layers × 2 × 2 heads × 32 values × 32 tokens × 4 B
MAX_PROMPT_TOKENS = 320
ANSWER_TOKENS = 48
MIN_GAP = 0.02  # between the logprobs of the two best tokens
PREFIX_BLOCKS = (1, 2, 4)
REST_TOKENS = (9, 150)  # range of what follows the shared prefix
NEW_TOKENS = 8  # of a conversation's second turn
MEDIA_MODEL = "qwen2-vl"
FIRST_ITEMS = (1, 2, 3, 4, 5, 6)  # of many prompts each
MORE_ITEMS = ((), (1,), (2, 7), (8, 8, 9))
TEXT_REPEATS = (0, 1, 2, 4)

Prompt = tuple[int, ...] | Question


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """A prompt and what one plain vLLM server answers."""

    prompt: Prompt
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


def next_turns(seed: int, references: Sequence[Reference]) -> list[Prompt]:
    """Return what would be asked next in conversations that begin with these prompts and answers."""
    rng = random.Random(f"{seed}/turns")
    documents = [prompt for prompt in listed_prompts() if len(prompt) > MAX_PROMPT_TOKENS]
    told = [(*each.prompt, *each.tokens) for each in references if not isinstance(each.prompt, Question)]
    return [(*each, *_stretch(rng, documents, NEW_TOKENS)) for each in told]


def draw_images() -> list[Question]:
    """Return prompts with one to four images before their text; most are left out for a near tie."""
    parts = product(FIRST_ITEMS, MORE_ITEMS, TEXT_REPEATS)
    return [Question((first, *more), repeats) for first, more, repeats in parts]


def body_of(model: str, prompt: Prompt, max_tokens: int, *, stream: bool) -> dict[str, Any]:
    """Return the request: greedy, with token ids and their logprobs."""
    if isinstance(prompt, Question):
        return media.body_of(MEDIA_MODEL, prompt, max_tokens=max_tokens, stream=stream)
    return body_for(model, prompt, max_tokens=max_tokens, logprobs=1, stream=stream)


async def ask_reference(url: str, model: str, prompts: Sequence[Prompt], at_once: int = 8) -> list[Reference]:
    """Ask a plain server for the right answers, and leave out prompts with a near tie."""
    gate = asyncio.Semaphore(at_once)
    unshared = httpx.Limits(max_keepalive_connections=0)  # a busy machine finds idle ones closed by the server
    async with httpx.AsyncClient(timeout=120, limits=unshared) as client:

        async def one(prompt: Prompt) -> Reference | None:
            is_chat = isinstance(prompt, Question)
            async with gate:
                body = body_of(model, prompt, ANSWER_TOKENS, stream=False)
                body |= {"top_logprobs": 2} if is_chat else {"logprobs": 2}
                response = await client.post(url + (media.CHAT if is_chat else "/v1/completions"), json=body)
                response.raise_for_status()
                return _read(prompt, response.json()["choices"][0])

        return [found for found in await asyncio.gather(*map(one, prompts)) if found is not None]


def logprobs_of(choice: dict[str, Any]) -> list[float]:
    """Return those of the tokens, as completions or chats name them; none of an event without tokens."""
    said = choice["logprobs"] or {}
    return said.get("token_logprobs") or [each["logprob"] for each in said.get("content") or ()]


def _read(prompt: Prompt, choice: dict[str, Any]) -> Reference | None:
    said = choice["logprobs"]
    tops = said.get("top_logprobs") or [
        dict(enumerate(top["logprob"] for top in each["top_logprobs"])) for each in said["content"]
    ]
    for best in tops:
        first, second = sorted(best.values(), reverse=True)[:2]
        if first - second < MIN_GAP:
            return None
    return Reference(prompt=prompt, tokens=tuple(choice["token_ids"]), logprobs=tuple(logprobs_of(choice)))


def _stretch(rng: random.Random, documents: Sequence[Sequence[int]], tokens: int) -> tuple[int, ...]:
    document = rng.choice(documents)
    start = rng.randrange(len(document) - tokens)
    return tuple(document[start : start + tokens])
