"""Runs one model: a pair of nodes of its own, in the four ways in which a prompt can come, against one plain server.

Digests of all blocks are compared in any case; tokens where vLLM agrees with itself.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple

from baton.contracts.http import DISAGGREGATED
from tests.e2e.client import Answer, difference
from tests.e2e.fidelity import VERIFY, answers, ask_all, choose_prompts
from tests.e2e.stack import Server, Stack
from tests.e2e.waiting import leftovers
from tests.matrix.models import MODELS, ensure
from tests.matrix.trial import COMMON, NODE, READY_WITHIN_S, leave_early

CELLS: Final = ("short", "chunked", "prefix hit", "abort")
CHUNK_TOKENS: Final = 256
SHORT: Final = 100  # tokens: less than a block
LONG: Final = (300, 700, 1500)  # tokens: two to six chunks
AT_ONCE: Final = 3


class Kind(NamedTuple):
    """A model, and flags of the two nodes."""

    model: str
    prefill: Sequence[str] = ()
    decode: Sequence[str] = ()

    def __str__(self) -> str:
        """How a test of it is called."""
        shapes = ["".join(flags).lstrip("-") or "1" for flags in (self.prefill, self.decode)]
        return self.model if shapes == ["1", "1"] else f"{self.model} {shapes[0]} to {shapes[1]}"


def short_prompts() -> list[list[int]]:
    """Prompts of one chunk, one of them of a single token."""
    return [[11], *(prompt[:SHORT] for prompt in choose_prompts(6)[3:])]


def long_prompts() -> list[list[int]]:
    """Prompts of several chunks, of which no two begin alike."""
    return [[20 + length % 7, *choose_prompts(6)[-1][: length - 1]] for length in LONG]


class Pair:
    """Two nodes and a proxy with one model, and what one plain server answers."""

    def __init__(self, kind: Kind, prefill: Server, decode: Server, proxy: Server, expected: Sequence[Answer]) -> None:
        self.prefill, self.decode, self.proxy = prefill, decode, proxy
        self.model, self._is_repeatable = str(ensure(kind.model)), MODELS[kind.model].is_repeatable
        self._expected = {"short": expected[: len(short_prompts())], "chunked": expected[len(short_prompts()) :]}

    async def run(self, cell: str) -> list[str]:
        """Serve the prompts of a cell; returns what was wrong."""
        if cell == "short":
            return await self._compare(short_prompts(), self._expected["short"])
        prompts, expected = long_prompts(), self._expected["chunked"]
        if cell == "abort":
            await leave_early(self.proxy, self.model, prompts[-1])
            return leftovers(self.prefill, self.decode) + await self._compare(
                prompts, expected
            )  # over blocks that were given back
        if cell == "prefix hit":
            halves = [prompt[: len(prompt) // 2] for prompt in prompts]
            for node in (self.prefill, self.decode):
                await ask_all(node.url, self.model, halves, AT_ONCE)
        return await self._compare(prompts, expected)

    async def _compare(self, prompts: Sequence[Sequence[int]], expected: Sequence[Answer]) -> list[str]:
        before = self._endings()
        found = await ask_all(self.proxy.url, self.model, prompts, AT_ONCE)
        problems = []
        for prompt, wanted, got in zip(prompts, expected, found, strict=True):
            if not isinstance(got, Answer):
                problems.append(f"{len(prompt)} tokens: {got!r}")
            elif self._is_repeatable and (why := difference(wanted, got)):
                problems.append(f"{len(prompt)} tokens: {why}")
            elif got.path != DISAGGREGATED:
                problems.append(f"{len(prompt)} tokens: served as {got.path}: {got.reason}")
        after = self._endings()
        seen = {name: after[name] - before[name] for name in after}
        bad = seen["failed"] + seen["mismatched"] + seen["unverifiable"]
        if bad or not 0 < seen["verified"] == seen["loaded"]:
            problems.append(f"the decode node counts {seen}")
        return problems

    def _endings(self) -> dict[str, int]:
        totals: dict[str, int] = self.decode.transfers()["worker"]["totals"]
        return {name: totals[name] for name in ("loaded", "verified", "failed", "mismatched", "unverifiable")}


@contextmanager
def pair_of(stack: Stack, kind: Kind) -> Iterator[Pair]:
    """Start a plain server with a model and ask it; then a pair of nodes and a proxy. They are stopped at the end."""
    model, flags = str(ensure(kind.model)), MODELS[kind.model].flags
    chunks = ("--max-num-batched-tokens", str(CHUNK_TOKENS))
    made: list[Server] = []
    try:
        made.append(stack.plain(*COMMON, *flags, model=model))
        made[0].wait_ready()  # the first server of a class of models has vLLM inspect it, in a process of its own
        made.append(stack.node("prefill", *NODE, *flags, *VERIFY, *chunks, *kind.prefill, model=model))
        made.append(stack.node("decode", *NODE, *flags, *VERIFY, *kind.decode, model=model))
        for server in made[1:]:
            server.wait_ready(READY_WITHIN_S)
        expected = answers(made[0].url, model, [*short_prompts(), *long_prompts()])
        made.append(stack.proxy(made[1:2], made[2:3]))
        made[-1].wait_ready()
        yield Pair(kind, made[1], made[2], made[3], expected)
    finally:
        stack.stop(*made)
