"""What is asked of a live pair, one prefill and one decode node behind a proxy, so that its speeds can be computed."""

import asyncio
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
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

_TIMEOUT_S: Final = 10.0
_WARM_UP: Final = 3  # requests
_MANY: Final = 8  # users whose prompts share steps
_SHORT: Final = 2  # lengths of which there are such

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """What is measured, and how often."""

    prompt_tokens: Sequence[int]
    samples: int  # of one request at a time; of everything else more or fewer in proportion
    users: Sequence[int]  # of the decode runs
    answer_tokens: int
    vocabulary: Vocabulary
    seed: int

    @property
    def each_user(self) -> int:
        """Requests of each user in a decode run: with two or more, some arrive while others are decoded."""
        return max(2, math.ceil(self.samples / 3))

    @property
    def turns(self) -> int:
        return max(3, self.samples - 2)

    @property
    def mixed(self) -> int:
        return 8 * self.samples

    @property
    def mixed_lengths(self) -> Lengths:
        """Theirs: from the shortest prompt to the longest one, and short answers, so that many meet."""
        short, long = min(self.prompt_tokens), max(self.prompt_tokens)
        answer = max(self.answer_tokens // 6, 3)
        return Lengths(input_tokens=(short + long) // 2, output_tokens=answer, spread=(long - short) / (long + short))


class NodeState(NamedTuple):
    """What a node's `/metrics` say."""

    kv_tokens: int  # size of the KV pool; 0: unknown
    pushed_bytes: float
    prompt_tokens: float


class Pair:
    """A pair that is asked one thing after the other. No prompt comes twice, so no cache helps."""

    def __init__(self, exchange: Exchange, effort: Effort, say: Say) -> None:
        self._exchange = exchange
        self._effort = effort
        self._say = say
        self._runs = 0

    async def prefill(self) -> list[PrefillCell]:
        """Ask for one token each, alone and in line; at the shorter lengths also with prompts that share steps."""
        effort = self._effort
        await self._run(max(effort.prompt_tokens), 4, users=1, requests=_WARM_UP)
        cells = []
        for tokens in effort.prompt_tokens:
            alone = await self._run(tokens, 1, users=1, requests=effort.samples)
            in_line = {2: await self._run(tokens, 1, users=2, requests=2 * effort.samples + 3)}
            if tokens in effort.prompt_tokens[:_SHORT]:
                in_line[_MANY] = await self._run(tokens, 1, users=_MANY, requests=_MANY * effort.turns)
            cells.append(PrefillCell(tokens, alone, in_line))
        return cells

    async def decode(self) -> list[list[Record]]:
        """Ask for long answers, with short and long prompts; and for short ones, so that more requests arrive."""
        effort = self._effort
        short, long = min(effort.prompt_tokens), max(effort.prompt_tokens)
        whole, part = effort.answer_tokens, max(effort.answer_tokens // 4, 3)
        return [
            await self._run(tokens, answer, users=users, requests=effort.each_user * users)
            for tokens, answer in ((short, whole), (short, part), (long, whole))
            for users in effort.users
        ]

    async def mixed(self, rate_per_s: float) -> list[Record]:
        requests, lengths = self._effort.mixed, self._effort.mixed_lengths
        about = f"about {lengths.input_tokens} + {lengths.output_tokens} tokens"
        self._say(f"{requests} requests of {about}, {rate_per_s:.2f} per second")
        due_s = arrivals(requests, rate_per_s, seed=self._effort.seed + self._runs)
        return await self._load(Open(due_s=due_s), lengths, requests)

    async def _run(self, tokens: int, answer: int, *, users: int, requests: int) -> list[Record]:
        self._say(f"{requests} requests of {tokens} + {answer} tokens, {users} at a time")
        return await self._load(Closed(concurrency=users), Lengths(input_tokens=tokens, output_tokens=answer), requests)

    async def _load(self, load: Load, lengths: Lengths, requests: int) -> list[Record]:
        self._runs += 1
        seed = self._effort.seed * 1000 + self._runs
        making = Making(seed=seed, chat=False, lengths=lengths, vocabulary=self._effort.vocabulary)
        loop = Loop(self._exchange, RandomPrompts(making), Limits(requests=requests, seconds=float("inf")))
        taken = await loop.run(load, asyncio.Event())
        for record in taken.records:
            if not record.ok:
                asked = f"{record.input_tokens} + {record.asked_output_tokens}"
                raise RunError(f"a request of {asked} tokens failed: {record.error} ({record.detail})")
        return taken.records


async def node_state(url: str) -> NodeState:
    """Look at a node. Raises `RunError`: it does not answer, or not as a vLLM server does."""
    address = parse_address(url.removesuffix("/metrics"))
    text = await fetch(address, "/metrics", {}, _TIMEOUT_S)
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
