"""What is asked of a live pair, one prefill and one decode node behind a proxy, so that its speeds can be computed."""

import argparse
import asyncio
import math
from collections.abc import Callable
from typing import Final, NamedTuple

from prometheus_client.parser import text_string_to_metric_families

from baton.loadtest.client.exchange import Exchange
from baton.loadtest.client.fetch import fetch
from baton.loadtest.client.http import parse_address
from baton.loadtest.errors import RunError
from baton.loadtest.measures.record import Record
from baton.loadtest.plan.rows import PrefillCell
from baton.loadtest.run.loops import Closed, Limits, Load, Loop, Open
from baton.loadtest.traffic.arrivals import arrivals
from baton.loadtest.traffic.made_up import Lengths, Making, RandomPrompts, Vocabulary

_WARM_UP: Final = 3  # requests
_MANY: Final = 8  # users whose prompts share steps
_SHORT: Final = 2  # lengths of which there are such


class NodeState(NamedTuple):
    """What a node's `/metrics` say."""

    kv_tokens: int  # size of the KV pool; 0: unknown
    pushed_bytes: float
    prompt_tokens: float


class Pair:
    """A pair that is asked one thing after the other. No prompt comes twice, so no cache helps."""

    def __init__(self, exchange: Exchange, given: argparse.Namespace, say: Callable[[str], None]) -> None:
        """`given`: what is measured, and how often, in the words of the command line."""
        self._exchange = exchange
        self._given = given
        self._say = say
        self._runs = 0

    @property
    def mixed_lengths(self) -> Lengths:
        """Those of the open loop: from the shortest prompt to the longest one, and short answers, so that many meet."""
        short, long = min(self._given.prompt_tokens), max(self._given.prompt_tokens)
        answer = max(self._given.answer_tokens // 6, 3)
        return Lengths(input_tokens=(short + long) // 2, output_tokens=answer, spread=(long - short) / (long + short))

    async def prefill(self) -> list[PrefillCell]:
        lengths, samples = sorted(self._given.prompt_tokens), self._given.samples
        await self._run(max(lengths), 4, users=1, requests=_WARM_UP)
        cells = []
        for tokens in lengths:
            alone = await self._run(tokens, 1, users=1, requests=samples)
            in_line = {2: await self._run(tokens, 1, users=2, requests=2 * samples + 3)}
            if tokens in lengths[:_SHORT]:
                in_line[_MANY] = await self._run(tokens, 1, users=_MANY, requests=_MANY * max(3, samples - 2))
            cells.append(PrefillCell(tokens, alone, in_line))
        return cells

    async def decode(self) -> list[list[Record]]:
        given = self._given
        short, long = min(given.prompt_tokens), max(given.prompt_tokens)
        whole, part = given.answer_tokens, max(given.answer_tokens // 4, 3)
        each = max(2, math.ceil(given.samples / 3))  # with two or more, some arrive while others are decoded
        return [
            await self._run(tokens, answer, users=users, requests=each * users)
            for tokens, answer in ((short, whole), (short, part), (long, whole))
            for users in given.users
        ]

    async def mixed(self, rate_per_s: float) -> list[Record]:
        requests, lengths = 8 * self._given.samples, self.mixed_lengths
        about = f"about {lengths.input_tokens} + {lengths.output_tokens} tokens"
        self._say(f"{requests} requests of {about}, {rate_per_s:.2f} per second")
        due_s = arrivals(requests, rate_per_s, seed=self._given.seed + self._runs)
        return await self._load(Open(due_s=due_s), lengths, requests)

    async def _run(self, tokens: int, answer: int, *, users: int, requests: int) -> list[Record]:
        self._say(f"{requests} requests of {tokens} + {answer} tokens, {users} at a time")
        return await self._load(Closed(concurrency=users), Lengths(input_tokens=tokens, output_tokens=answer), requests)

    async def _load(self, load: Load, lengths: Lengths, requests: int) -> list[Record]:
        self._runs += 1
        low, high = self._given.vocabulary
        seed, vocabulary = self._given.seed * 1000 + self._runs, Vocabulary(low=low, high=high)
        making = Making(seed=seed, chat=False, lengths=lengths, vocabulary=vocabulary)
        loop = Loop(self._exchange, RandomPrompts(making), Limits(requests=requests, seconds=float("inf")))
        taken = await loop.run(load, asyncio.Event())
        for record in taken.records:
            if not record.ok:
                asked = f"{record.input_tokens} + {record.asked_output_tokens}"
                raise RunError(f"a request of {asked} tokens failed: {record.error} ({record.detail})")
        return taken.records


async def node_state(url: str | None) -> NodeState:
    """Look at a node, if its address is known. Raises `RunError`: it does not answer, or not as a vLLM server does."""
    if not url:
        return NodeState(0, 0.0, 0.0)
    address = parse_address(url.removesuffix("/metrics"))
    text = await fetch(address, "/metrics", {})
    try:
        return parse_state(text.decode())
    except ValueError as exc:
        raise RunError(f"{url} has no metrics of a vLLM server: {exc}") from exc


def parse_state(text: str) -> NodeState:
    kv_tokens, sums = 0, {"baton_pushed_bytes_total": 0.0, "vllm:prompt_tokens_total": 0.0}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name in sums:
                sums[sample.name] += sample.value
            elif sample.name == "vllm:cache_config_info":
                kv_tokens = int(sample.labels["num_gpu_blocks"]) * int(sample.labels["block_size"])
    return NodeState(kv_tokens, *sums.values())
