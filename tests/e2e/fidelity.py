"""Is an answer through Baton the answer of one vLLM server? Measured, not assumed.

    python -m tests.e2e.fidelity --prompts 200

Reference: a plain vLLM server, one prompt at a time, float32. Then every cell of {one at a time, 16 at once} ×
{prefill in one chunk, prefill chunked at 256 tokens} × {cold, warm prefix caches} is compared with it: token ids
identical, top-5 logprobs within 1e-3. What travelled and what D computed is counted: bytes pushed equal bytes
expected, and D computes no prompt token: it starts with the token that P has sampled. Tokens alone would hardly show a block that is missing far back in
the prompt, so every transfer's KV digest on D is compared with P's as well. Other types of KV: test_kv_dtypes.py.
"""

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path

import httpx

from baton.contracts.http import DISAGGREGATED
from tests.e2e.client import Answer, complete, difference, worst_logprob
from tests.e2e.stack import FLOAT32, Stack, running_stack
from tests.support.listed_prompts import prompts as listed_prompts

AT_ONCE = (1, 16)
CHUNKS_TOKENS = (4096, 256)
KV_CACHE = ("--kv-cache-memory-bytes", str(1 << 30))  # every prompt fits into the prefix caches
VERIFY = ("--kv-verify", "full")
TIMEOUT_S = 300.0


@dataclass(kw_only=True)
class Cell:
    """One way of serving the same prompts, and what was seen."""

    name: str
    requests: int = 0
    problems: list[str] = field(default_factory=list)
    worst_logprob: float = 0.0
    bytes_pushed: int = 0
    bytes_expected: int = 0
    computed_on_decode: int = 0  # prompt tokens
    verified: int = 0  # transfers whose digests agree

    def __str__(self) -> str:
        verdict = "exact" if not self.problems else f"{len(self.problems)} PROBLEMS"
        return (
            f"{self.name:<42} {self.requests:>4} requests  {verdict:<12} worst logprob {self.worst_logprob:.1e}  "
            f"pushed {self.bytes_pushed / 2**20:8.1f} of {self.bytes_expected / 2**20:8.1f} MiB  "
            f"computed on D {self.computed_on_decode} tokens  digests equal {self.verified}"
        )


def choose_prompts(count: int) -> list[list[int]]:
    """Return `count` of the listed prompts, evenly spread over their lengths, the shortest and longest included."""
    by_length = sorted(listed_prompts(), key=len)
    step = (len(by_length) - 1) / max(count - 1, 1)
    return [by_length[round(index * step)] for index in range(count)]


async def ask_all(
    url: str, model: str, prompts: Sequence[Sequence[int]], at_once: int, cache_salt: str = ""
) -> list[Answer | httpx.HTTPError]:
    """Complete every prompt, `at_once` at a time; answers in the order of `prompts`. With another salt no cache has any."""
    more = {"cache_salt": cache_salt} if cache_salt else {}
    gate = asyncio.Semaphore(at_once)
    async with httpx.AsyncClient(timeout=TIMEOUT_S, limits=httpx.Limits(max_connections=None)) as client:

        async def one(prompt: Sequence[int]) -> Answer | httpx.HTTPError:
            async with gate:
                try:
                    return await complete(client, url, model, prompt, **more)
                except httpx.HTTPError as exc:
                    return exc

        return await asyncio.gather(*map(one, prompts))


def answers(url: str, model: str, prompts: Sequence[Sequence[int]], at_once: int = 1) -> list[Answer]:
    """Complete every prompt; the first failure is raised."""
    found = asyncio.run(ask_all(url, model, prompts, at_once))
    for answer in found:
        if isinstance(answer, httpx.HTTPError):
            raise answer
    return [answer for answer in found if isinstance(answer, Answer)]


class Pair:
    """A prefill node, a decode node and a proxy of their own."""

    def __init__(self, stack: Stack, *prefill_flags: str) -> None:
        self.prefill = stack.node("prefill", *FLOAT32, *KV_CACHE, *VERIFY, *prefill_flags)
        self.decode = stack.node("decode", *FLOAT32, *KV_CACHE, *VERIFY)
        self.proxy = stack.proxy([self.prefill], [self.decode])
        self.model = stack.model

    def run(self, name: str, prompts: Sequence[Sequence[int]], reference: Sequence[Answer], at_once: int) -> Cell:
        cell = Cell(name=name, requests=len(prompts))
        before = self.counters()
        found = asyncio.run(ask_all(self.proxy.url, self.model, prompts, at_once, f"{at_once} at once"))
        for prompt, wanted, got in zip(prompts, reference, found, strict=True):
            if isinstance(got, httpx.HTTPError):
                cell.problems.append(f"{len(prompt)} tokens: {got!r}")
                continue
            cell.worst_logprob = max(cell.worst_logprob, worst_logprob(wanted, got))
            if problem := difference(wanted, got):
                cell.problems.append(f"{len(prompt)} tokens: {problem}")
            if got.path != DISAGGREGATED:
                cell.problems.append(f"{len(prompt)} tokens: served as {got.path}: {got.reason}")
        self.count(cell, before)
        return cell

    def count(self, cell: Cell, before: dict[str, int]) -> None:
        """Enter what has travelled since `before`, and check that it adds up."""
        delta = {name: value - before[name] for name, value in self.counters().items()}
        cell.bytes_pushed, cell.bytes_expected = delta["bytes_committed"], delta["bytes_expected"]
        cell.computed_on_decode, cell.verified = delta["prompt_tokens_computed"], delta["verified"]
        if cell.bytes_pushed != cell.bytes_expected:
            cell.problems.append("bytes pushed differ from bytes expected")
        if cell.computed_on_decode or delta["started"] != cell.requests:
            cell.problems.append(
                f"D computed {cell.computed_on_decode} prompt tokens and started {delta['started']} of {cell.requests} "
                "requests with P's token"
            )
        if delta["mismatched"] or cell.verified != delta["loaded"] or not cell.verified:
            cell.problems.append(f"digests: {delta}")

    def counters(self) -> dict[str, int]:
        """Totals of both nodes so far."""
        prefill, decode = self.prefill.transfers(), self.decode.transfers()
        counters: dict[str, int] = (
            prefill["worker"]["totals"] | decode["worker"]["totals"] | decode["scheduler"]["totals"]
        )
        return counters


def float32_cells(
    stack: Stack, prompts: Sequence[Sequence[int]], reference: Sequence[Answer], chunk: int, layer_sync: str = "auto"
) -> list[Cell]:
    cells = []
    with stack.stopping():
        pair = Pair(stack, "--max-num-batched-tokens", str(chunk), "--layer-sync", layer_sync)
        for at_once, warmth in product(AT_ONCE, ("cold", "warm")):
            name = f"float32, {at_once} at once, chunks of {chunk}, {warmth}"
            cells.append(pair.run(name, prompts, reference, at_once))
            print(cells[-1], flush=True)
    return cells


def run(stack: Stack, count: int, layer_sync: str = "auto") -> list[Cell]:
    prompts = choose_prompts(count)
    with stack.stopping():
        plain = stack.plain(*FLOAT32, *KV_CACHE, "--no-enable-prefix-caching")
        plain.wait_ready()
        reference = answers(plain.url, stack.model, prompts)
    return [cell for chunk in CHUNKS_TOKENS for cell in float32_cells(stack, prompts, reference, chunk, layer_sync)]


def problems_of(cells: Sequence[Cell]) -> list[str]:
    return [f"{cell.name}: {problem}" for cell in cells for problem in cell.problems]


def main() -> int:
    """Print the table; exit with 1 if anything differs."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--prompts", type=int, default=24, help="prompts per cell")
    parser.add_argument("--layer-sync", default="auto", help="policy of the prefill nodes")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="baton-fidelity-") as folder, running_stack(Path(folder)) as stack:
        cells = run(stack, arguments.prompts, arguments.layer_sync)
    problems = problems_of(cells)
    print(*problems, f"{len(cells)} cells, {len(problems)} problems", sep="\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
