"""Runs one model: a pair of nodes of its own, in the four ways in which a prompt can come, against one plain server.

Digests of all blocks are compared unless blocks are divided; tokens where vLLM agrees with itself.
"""

import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import compress
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from baton.contracts.http import DISAGGREGATED
from tests.e2e.client import Answer, difference
from tests.e2e.fidelity import VERIFY, answers, choose_prompts
from tests.e2e.stack import Server, Stack
from tests.e2e.waiting import leftovers
from tests.matrix.drafter_models import DRAFTING
from tests.matrix.grouped_models import GROUPED_MODELS
from tests.matrix.models import MODELS, Recipe, ensure, lengths
from tests.matrix.recurrent_models import RECURRENT_MODELS
from tests.matrix.trial import COMMON, NODE, cache_halves, leave_early

CELLS: Final = ("short", "chunked", "prefix hit", "abort")
CHUNK_TOKENS: Final = 512
SHORT_TOKENS: Final = 128
AT_ONCE: Final = 3
RECIPES: Final[Mapping[str, Recipe]] = MappingProxyType({**MODELS, **DRAFTING, **GROUPED_MODELS, **RECURRENT_MODELS})


class Kind(NamedTuple):
    """A model, and how many tensor-parallel ranks of the two nodes have a part of it."""

    model: str
    prefill: int = 1
    decode: int = 1
    divides_blocks: bool = False  # heads are on different ranks of the two, so that there are no digests to compare
    drafts: tuple[int, int] = (0, 0)  # tokens that are drafted a step on P and on D; 0: none
    drafter: str = "mtp"  # the model's own, or "ngram"
    cached: tuple[bool, bool] = (False, False)  # whether P's and D's prefix cache is on, with recurrent layers

    def __str__(self) -> str:
        ranks = "" if self.prefill == self.decode == 1 else f" tp{self.prefill} to tp{self.decode}"
        drafts = f" drafts {self.drafts[0]} to {self.drafts[1]}" if any(self.drafts) else ""
        drafts += f" by {self.drafter}" if drafts and self.drafter != "mtp" else ""
        cached = f" cached on {' and '.join(compress('PD', self.cached))}" if any(self.cached) else ""
        return self.model + ranks + drafts + cached


@dataclass(frozen=True, slots=True)
class Pair:
    """Two nodes and a proxy with one model, and what one plain server answers."""

    kind: Kind
    plain: Server
    prefill: Server
    decode: Server
    proxy: Server
    prompts: Sequence[Sequence[int]]
    expected: Sequence[Answer]

    @property
    def model(self) -> str:
        """Where it lies."""
        return str(ensure(self.kind.model, RECIPES[self.kind.model]))

    def run(self, cell: str) -> list[str]:
        """Serve the prompts of a cell; returns what was wrong.

        Beside states and drafts a prompt of one token is asked for alone: where other streams run, vLLM 0.32 fills it up with placeholders, which become part
        of its state, on a server without Baton too.
        """
        model, recipe = self.model, RECIPES[self.kind.model]
        chosen = [i for i, prompt in enumerate(self.prompts) if (len(prompt) <= SHORT_TOKENS) == (cell == "short")]
        prompts = [self.prompts[i] for i in chosen]
        problems: list[str] = []
        if cell == "prefix hit":
            for node in (self.prefill, self.decode):
                cache_halves(node, model, prompts)
        if cell == "abort":
            asyncio.run(leave_early(self.proxy, model, prompts[-1]))
            problems += leftovers(self.prefill, self.decode)
        before = self._endings()  # a client that leaves may have P give up first, which counts as failed
        alone = sum(len(prompt) == 1 for prompt in prompts) if _is_patched(self.kind) else 0
        found = [
            *answers(self.proxy.url, model, prompts[:alone]),
            *answers(self.proxy.url, model, prompts[alone:], AT_ONCE),
        ]
        for i, got in zip(chosen, found, strict=True):
            why = difference(self.expected[i], got) if recipe.is_repeatable else ""
            if why := why or ("" if got.path == DISAGGREGATED else f"served as {got.path}: {got.reason}"):
                problems.append(f"{len(self.prompts[i])} tokens: {why}")
        seen = {name: total - before[name] for name, total in self._endings().items()}
        is_verified = self.kind.divides_blocks or 0 < seen["verified"] == seen["loaded"]
        if not is_verified or seen["failed"] or seen["mismatched"] or seen["unverifiable"]:
            problems.append(f"the decode node counts {seen}")
        return problems + leftovers(self.prefill, self.decode)

    def _endings(self) -> dict[str, int]:
        totals: dict[str, int] = self.decode.transfers()["worker"]["totals"]
        return {name: totals[name] for name in ("loaded", "verified", "failed", "mismatched", "unverifiable")}


@contextmanager
def pair_of(stack: Stack, kind: Kind, *, drafts_alone: int = 0) -> Iterator[Pair]:
    """Start a plain server with a model, which drafts so many tokens a step, and ask it; then a pair of nodes and a proxy. They are stopped at the end."""
    recipe = RECIPES[kind.model]
    model, flags = str(ensure(kind.model, recipe)), recipe.flags
    text = choose_prompts(6)[-1]
    with stack.stopping():
        alone = (*flags, *drafting(drafts_alone), *caching(recipe, is_on=any(kind.cached)))
        plain = stack.plain(*COMMON, *alone, model=model)
        plain.wait_ready()  # the first server of a class of models has vLLM inspect it, in a process of its own
        chunks = ("--max-num-batched-tokens", str(CHUNK_TOKENS))
        on_prefill, on_decode = (
            (*flags, *_ranks(ranks), *drafting(drafts, kind.drafter), *caching(recipe, is_on=is_on))
            for ranks, drafts, is_on in zip((kind.prefill, kind.decode), kind.drafts, kind.cached, strict=True)
        )
        prefill = stack.node("prefill", *NODE, *VERIFY, *chunks, *on_prefill, model=model, **_place(kind, "prefill"))
        decode = stack.node("decode", *NODE, *VERIFY, *on_decode, model=model, **_place(kind, "decode"))
        decode.wait_ready()  # how long a block is depends on the CPU, too
        block_tokens = decode.info()["fingerprint"]["block_size_tokens"]
        asked = [
            *lengths(recipe, block_tokens),
            *([CHUNK_TOKENS + 2] if _is_patched(kind) else []),
        ]
        prompts = [[20 + number, *text[: length - 1]] for number, length in enumerate(asked)]
        expected = answers(plain.url, model, prompts)
        proxy = stack.proxy([prefill], [decode])
        yield Pair(kind, plain, prefill, decode, proxy, prompts, expected)


def drafting(tokens: int, method: str = "mtp") -> Sequence[str]:
    """Return the flags of a server that drafts so many tokens a step."""
    settings: dict[str, Any] = {"method": method, "num_speculative_tokens": tokens}
    if method == "ngram":
        settings |= {"prompt_lookup_max": 3, "prompt_lookup_min": 1}
    return ("--speculative-config", json.dumps(settings)) if tokens else ()


def caching(recipe: Recipe, *, is_on: bool = True) -> Sequence[str]:
    """Return the flags of a server whose recurrent layers keep states for the prefix cache, against those of the recipe.

    On a CPU Mamba2's kernel leaves no state within a chunk, and vLLM expects one where a chunk is longer than a block.
    """
    return ("--enable-prefix-caching", "--max-num-batched-tokens", str(recipe.block_tokens)) if is_on else ()


def _place(kind: Kind, role: str) -> dict[str, Any]:
    """Return how a node is started."""
    is_refused = any(kind.drafts) and RECIPES[kind.model].has_states  # on a CPU
    return {"target": "tests.support.drafted_mamba2:node", "kwargs": {"role": role}} if is_refused else {}


def _is_patched(kind: Kind) -> bool:
    """Whether nodes need other kernels than vLLM's for CPUs: Mamba2 beside drafts.

    Gated delta nets have kernels of their own. Those end the engine where a step of one token is all that is computed of a prompt.
    """
    recipe = RECIPES[kind.model]
    return any(kind.drafts) and recipe.has_states and recipe.is_repeatable


def _ranks(number: int) -> Sequence[str]:
    return ("-tp", str(number)) if number > 1 else ()
