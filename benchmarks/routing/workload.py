"""What is sent: a recorded trace with its prompts written out, or Poisson arrivals of prompts that share nothing. Pure."""

import random
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import msgspec

from baton.loadtest.traffic.made_up import Lengths, Making, Vocabulary
from baton.loadtest.traffic.trace_replay import BLOCK_TOKENS, Scale, TracedRequest, TraceReplay
from baton.proxy.routing.prefixes import CHUNK_BYTES, Prefixes, prefixes

TIMES_S: Final = 3.0  # the recorded trace's times are multiples of this


class Request(NamedTuple):
    """One prompt."""

    at_s: float
    tokens: int
    prompt_bytes: int
    blocks: tuple[int, ...] = ()  # ids of those that a cache can hold: full ones, and not the last token
    prefixes: Prefixes = ()  # what the proxy reads of it


def write_prompts(trace: Sequence[TracedRequest]) -> list[Request]:
    """Write out each prompt as a chat, made from its blocks' ids, and number its prefixes as the proxy does."""
    making = Making(seed=1, chat=True, lengths=Lengths(input_tokens=1, output_tokens=1), vocabulary=Vocabulary())
    replay = TraceReplay(making, trace, Scale())
    made = []
    for index, (at_s, traced) in enumerate(zip(replay.due_s(), trace, strict=True)):
        text = msgspec.json.encode(next(replay.script(index)).prompt)
        blocks = traced.hash_ids[: (traced.input_length - 1) // BLOCK_TOKENS]
        made.append(Request(at_s, traced.input_length, len(text), blocks, prefixes(text)))
    return made


def spread_arrivals(requests: Sequence[Request], rng: random.Random) -> list[Request]:
    """Draw each arrival from the seconds that its rounded time stands for."""
    return sorted([one._replace(at_s=one.at_s + TIMES_S * rng.random()) for one in requests], key=lambda one: one.at_s)


def draw_arrivals(lengths: Sequence[int], rate_per_s: float, seconds: float, rng: random.Random) -> Iterator[Request]:
    """Yield Poisson arrivals of prompts of any of these lengths, in tokens."""
    at_s = rng.expovariate(rate_per_s)
    while at_s < seconds:
        tokens = rng.choice(lengths)
        yield Request(at_s, tokens, tokens * CHUNK_BYTES // BLOCK_TOKENS)
        at_s += rng.expovariate(rate_per_s)
