"""How much of a conversation is computed twice? A prefill node has never seen the answers that a decode node gave.

    python -m tests.e2e.turns

Conversations of several turns on the real stack, each turn the whole history and a new question. Per turn: tokens of the
prompt, tokens that nobody had seen (the question), and what either node computed of the prompt: by vLLM's own counters
on P, by the scheduler's on D.
"""

import asyncio
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx

from tests.e2e.client import complete
from tests.e2e.fidelity import choose_prompts
from tests.e2e.stack import FLOAT32, Server, Stack, running_stack

TURNS = 6
ANSWER_TOKENS = 200
QUESTION_TOKENS = 60
FIRST_TOKENS = 500
LOCAL_BELOW_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Turn:
    """What one turn cost, in tokens of its prompt."""

    prompt: int
    question: int
    on_prefill: int
    on_decode: int
    path: str


def computed(node: Server) -> int:
    """Tokens of prompts that a node has computed so far: all that it was asked for, without its prefix cache's hits."""
    metrics = node.metrics()
    return round(metrics["vllm:prompt_tokens_total"] - metrics["vllm:prefix_cache_hits_total"])


async def converse(prefill: Server, decode: Server, proxy: Server, model: str, text: Sequence[int]) -> list[Turn]:
    """Go through one conversation over the nodes."""
    history, turns = list(text[:FIRST_TOKENS]), []
    asked = FIRST_TOKENS
    async with httpx.AsyncClient(timeout=60) as client:
        for turn in range(TURNS):
            before = computed(prefill), decode.transfers()["scheduler"]["totals"]["prompt_tokens_computed"]
            answer = await complete(client, proxy.url, model, history, max_tokens=ANSWER_TOKENS)
            after = computed(prefill), decode.transfers()["scheduler"]["totals"]["prompt_tokens_computed"]
            turns.append(Turn(len(history), asked, after[0] - before[0], after[1] - before[1], answer.path))
            first = FIRST_TOKENS + turn * QUESTION_TOKENS
            question = text[first : first + QUESTION_TOKENS]
            asked = len(question)
            history += [*answer.tokens, *question]
    return turns


def run(stack: Stack, settings: dict[str, str | None]) -> list[Turn]:
    """Start a pair and a proxy with these settings, and have one conversation."""
    made = [stack.node("prefill", *FLOAT32), stack.node("decode", *FLOAT32)]
    try:
        for node in made:
            node.wait_ready()
        made.append(stack.proxy(made[:1], made[1:], env=settings))
        made[-1].wait_ready()
        return asyncio.run(converse(made[0], made[1], made[2], stack.model, choose_prompts(2)[-1]))
    finally:
        stack.stop(*made)


def main() -> int:
    """Print a table for each way of routing."""
    with tempfile.TemporaryDirectory(prefix="baton-turns-") as folder, running_stack(Path(folder)) as stack:
        for below in (0, LOCAL_BELOW_BYTES):
            print(f"\nproxy.local_below_bytes {below}; {ANSWER_TOKENS} tokens an answer")
            print("turn  prompt  question  computed on P  of it again  computed on D  path")
            turns = run(stack, {"BATON_PROXY_LOCAL_BELOW_BYTES": str(below)})
            for number, turn in enumerate(turns, 1):
                again = max(0, turn.on_prefill - turn.question)
                print(
                    f"{number:>4}  {turn.prompt:>6}  {turn.question:>8}  {turn.on_prefill:>13}  {again:>11}  "
                    f"{turn.on_decode:>13}  {turn.path}"
                )
            again = sum(max(0, turn.on_prefill - turn.question) for turn in turns)
            print(
                f"computed on P although a node had it: {again} of {sum(turn.prompt for turn in turns)} prompt tokens"
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
