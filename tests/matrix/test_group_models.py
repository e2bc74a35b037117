"""KV of models with windows, several groups or states is handed over exactly, in the four ways in which prompts come."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import pytest

from baton.contracts.http import DISAGGREGATED
from tests.e2e.client import Answer, difference
from tests.e2e.fidelity import VERIFY, answers, choose_prompts
from tests.e2e.stack import FLOAT32, Server, Stack
from tests.e2e.waiting import leftovers
from tests.matrix.group_models import MODELS, ensure, lengths
from tests.matrix.trial import NODE, READY_WITHIN_S, leave_early

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(400)]

CELLS = ("short", "chunked", "prefix hit", "abort")
CHUNK_TOKENS = "512"
BLOCK_TOKENS = 128
AT_ONCE = 3


class Shapes(NamedTuple):
    """A model, and over how many ranks each node divides its heads."""

    model: str
    prefill: int = 1
    decode: int = 1

    def __str__(self) -> str:
        """How a test of it is called."""
        return self.model if self.prefill == self.decode == 1 else f"{self.model} tp{self.prefill} to tp{self.decode}"


@dataclass
class Pair:
    """Two nodes and a proxy with one model, and what one plain server answers."""

    prefill: Server
    decode: Server
    proxy: Server
    model: str
    prompts: Sequence[Sequence[int]]
    expected: Sequence[Answer]
    is_repeatable: bool

    def run(self, cell: str) -> list[str]:
        """Serve the prompts of a cell; returns what was wrong."""
        chosen = [i for i, prompt in enumerate(self.prompts) if (len(prompt) <= BLOCK_TOKENS) == (cell == "short")]
        prompts = [self.prompts[i] for i in chosen]
        if cell == "prefix hit":
            for node in (self.prefill, self.decode):
                answers(node.url, self.model, [prompt[: len(prompt) // 2] for prompt in prompts], AT_ONCE)
        problems: list[str] = []
        if cell == "abort":
            asyncio.run(leave_early(self.proxy, self.model, prompts[-1]))
            problems += leftovers(self.prefill, self.decode)
        before = self._totals()  # a client that leaves may have P give up first, which counts as failed
        found = answers(self.proxy.url, self.model, prompts, AT_ONCE)
        for i, got in zip(chosen, found, strict=True):
            why = difference(self.expected[i], got) if self.is_repeatable else ""
            if why := why or ("" if got.path == DISAGGREGATED else got.reason):
                problems.append(f"{len(self.prompts[i])} tokens: {why}")
        if more := {name: total - before[name] for name, total in self._totals().items() if total > before[name]}:
            problems.append(f"the decode node counts {more}")
        return problems + leftovers(self.prefill, self.decode)

    def _totals(self) -> dict[str, int]:
        totals = self.decode.transfers()["worker"]["totals"]
        return {name: totals[name] for name in ("failed", "mismatched", "unverifiable")}


def _prompts(name: str) -> list[list[int]]:
    """Of which no two begin alike."""
    text = choose_prompts(6)[-1]
    return [[20 + number, *(text * 2)[: length - 1]] for number, length in enumerate(lengths(name))]


def _ranks(number: int) -> Sequence[str]:
    return ("-tp", str(number)) if number > 1 else ()


@contextmanager
def _pair_of(forkserver_of: Stack, shapes: Shapes) -> Iterator[Pair]:
    name = shapes.model
    folder = forkserver_of.folder / f"{name}-{shapes.prefill}-{shapes.decode}"  # sockets want short paths
    folder.mkdir(exist_ok=True)
    stack = Stack(forkserver_of.forkserver, folder, ensure(name), env=forkserver_of.env)
    try:
        flags = MODELS[name].flags
        plain = stack.plain(*FLOAT32, "--max-model-len", "4096", *flags)
        plain.wait_ready()
        chunks = ("--max-num-batched-tokens", CHUNK_TOKENS)
        prefill = stack.node("prefill", *NODE, *VERIFY, *chunks, *flags, *_ranks(shapes.prefill))
        decode = stack.node("decode", *NODE, *VERIFY, *flags, *_ranks(shapes.decode))
        for node in (prefill, decode):
            node.wait_ready(READY_WITHIN_S)
        prompts = _prompts(name)
        known_as = decode.info()["fingerprint"]["block_size_tokens"]
        assert known_as == MODELS[name].block_tokens, "the prompts' lengths are chosen by it"
        expected = answers(plain.url, stack.model, prompts)
        stack.stop(plain)
        proxy = stack.proxy([prefill], [decode])
        proxy.wait_ready()
        yield Pair(prefill, decode, proxy, stack.model, prompts, expected, MODELS[name].is_repeatable)
    finally:
        stack.stop(*stack.servers)


@pytest.fixture(scope="module")
def pair(stack: Stack, request: pytest.FixtureRequest) -> Iterator[Pair]:
    """A prefill node, a decode node and a proxy with one model, and what one plain server said."""
    with _pair_of(stack, request.param) as running:
        yield running


@pytest.mark.parametrize("pair", [Shapes("gpt-oss"), Shapes("falcon-h1")], indirect=True, ids=str)
def test_a_representative_model_is_exact_in_every_way(pair: Pair) -> None:
    """Full attention and windows, or states, in groups that share memory."""
    assert [problem for cell in CELLS for problem in pair.run(cell)] == []


@pytest.mark.matrix
@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize(
    "pair",
    [*map(Shapes, MODELS), Shapes("gemma3", 2, 1), Shapes("gemma3", 1, 2), Shapes("gpt-oss", 2, 2)],
    indirect=True,
    ids=str,
)
def test_every_model_with_windows_or_states_is_exact(pair: Pair, cell: str) -> None:
    """Each model in each way; several groups also between nodes of one rank and of two."""
    assert pair.run(cell) == []
