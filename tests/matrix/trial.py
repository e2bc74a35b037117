"""Runs one cell of `cells.py`: real nodes, a proxy, the same prompts as one plain server got."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import httpx

from baton.contracts.http import DISAGGREGATED
from tests.e2e.client import Answer, body_for, difference
from tests.e2e.fidelity import answers, choose_prompts
from tests.e2e.stack import FLOAT32, Server, Stack
from tests.e2e.waiting import leftovers
from tests.matrix.cells import Cell

PROMPTS = 6
AT_ONCE = 3
MEMORY = ("--kv-cache-memory-bytes", str(64 << 20))
LEAVE_AFTER_S = (0.01, 0.05, 0.2)
COMMON = (*FLOAT32, *MEMORY, "--max-model-len", "4096", "--max-num-seqs", "16")
NODE = (*COMMON, "--peer-timeout-s", "30")  # up to eight ranks share two cores
# What is asked is whether hand-overs are exact, not whether a push is fast enough where eight ranks share two cores.
PATIENT = {
    "MC_TCP_PROGRESS_TIMEOUT_SEC": "20",
    "MC_TCP_STATUS_TIMEOUT_SEC": "20",
    "MC_TRANSFER_TIMEOUT": "20",
    "MC_HANDSHAKE_CONNECT_TIMEOUT": "20",
    "BATON_PROXY_PROBE_TIMEOUT_S": "20",
}


@dataclass(frozen=True, slots=True)
class Reference:
    """The prompts, and what one plain server says to them."""

    prompts: Sequence[Sequence[int]]
    answers: Sequence[Answer]


def reference_from(stack: Stack) -> Reference:
    """Ask a plain server, one prompt at a time."""
    with stack.stopping():
        plain = stack.plain(*FLOAT32)
        plain.wait_ready()
        prompts = choose_prompts(PROMPTS)
        return Reference(prompts, answers(plain.url, stack.model, prompts))


def run(stack: Stack, cell: Cell, reference: Reference) -> list[str]:
    """Serve every prompt and compare; then have a client leave, and see that nothing stays. Returns what was wrong."""
    with stack.stopping():
        prefill = stack.node("prefill", *NODE, *cell.prefill, env=PATIENT)
        decode = stack.node("decode", *NODE, *cell.decode, env=PATIENT)
        proxy = stack.proxy([prefill], [decode], env=PATIENT)
        for node, is_warm in ((prefill, cell.warm_prefill), (decode, cell.warm_decode)):
            if is_warm:
                cache_halves(node, stack.model, reference.prompts)
        found = answers(proxy.url, stack.model, reference.prompts, AT_ONCE)
        problems = [
            f"{len(prompt)} tokens: {why}"
            for prompt, wanted, got in zip(reference.prompts, reference.answers, found, strict=True)
            if (why := difference(wanted, got) or _not_handed_over(got))
        ]
        asyncio.run(leave_early(proxy, stack.model, reference.prompts[-1]))
        return problems + leftovers(prefill, decode)


def cache_halves(node: Server, model: str, prompts: Sequence[Sequence[int]]) -> None:
    """Have a node compute the first half of each prompt by itself."""
    for prompt in prompts:
        node.ask("/v1/completions", body_for(model, prompt[: (len(prompt) + 1) // 2], max_tokens=1))


async def leave_early(proxy: Server, model: str, prompt: Sequence[int]) -> None:
    """Start requests and leave: before P has begun, while it computes, when tokens come (or so, on most machines)."""
    async with httpx.AsyncClient(timeout=60) as client:
        for after_s in LEAVE_AFTER_S:
            body = body_for(model, [7, *prompt[1:]], stream=True)
            request = asyncio.create_task(client.post(f"{proxy.url}/v1/completions", json=body))
            await asyncio.sleep(after_s)
            request.cancel()
            await asyncio.wait((request,))


def _not_handed_over(answer: Answer) -> str:
    return "" if answer.path == DISAGGREGATED else f"served as {answer.path}: {answer.reason}"
