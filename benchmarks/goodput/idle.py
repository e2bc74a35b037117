"""What an idle plain server takes, and whether a request kept the SLOs that follow from it."""

from collections.abc import Sequence
from statistics import median
from typing import Final, NamedTuple

import numpy as np

from baton.loadtest.client.exchange import Exchange
from baton.loadtest.measures.record import Record
from baton.loadtest.measures.serving import is_good
from baton.loadtest.run.loops import ask_each
from baton.loadtest.traffic.made_up import Lengths
from benchmarks.goodput.mixes import Kind
from benchmarks.harness import BenchError

TTFT_TIMES: Final = 5.0
TPOT_TIMES: Final = 3.0
PROMPT_TOKENS: Final = (48, 300, 1000, 2000, 3000)
_STREAMS: Final = 8  # that decode at once where the work of a token is measured


class Idle(NamedTuple):
    """Times of one plain server that has nothing else to do."""

    points: Sequence[tuple[int, float, float]]  # tokens of a prompt, TTFT, TPOT; medians, by length
    token_s: float  # work of one output token among `_STREAMS` streams

    def times_s(self, tokens: float) -> tuple[float, float]:
        """Return TTFT and TPOT: on the line between the neighbours in length, beyond the ends those of the end."""
        lengths, ttfts_s, tpots_s = zip(*self.points, strict=True)
        return float(np.interp(tokens, lengths, ttfts_s)), float(np.interp(tokens, lengths, tpots_s))

    def cost_s(self, kind: Kind) -> float:
        """Return the mean work of a request if the prefix cache has all earlier turns."""
        prompt, answer = kind.lengths.input_tokens, kind.lengths.output_tokens
        return self.times_s(prompt + (answer if kind.turns > 1 else 0))[0] + self.token_s * answer


def meets_slos(record: Record, idle: Idle) -> bool:
    """Whether a request was answered whole, its first token and the later ones in time."""
    ttft_s, tpot_s = idle.times_s(record.input_tokens)
    slos_ms = {"ttft": TTFT_TIMES * ttft_s * 1000, "tpot": TPOT_TIMES * tpot_s * 1000}
    return record.ok and is_good(record, slos_ms)


async def measure_idle(exchange: Exchange, seed: int) -> Idle:
    """Ask an idle server. Raises `BenchError`: a request failed."""
    await ask_prompts(exchange, Kind("first", Lengths(input_tokens=PROMPT_TOKENS[-1], output_tokens=4)), 2, seed=seed)
    points = []
    for tokens in PROMPT_TOKENS:
        kind = Kind(f"alone/{tokens}", Lengths(input_tokens=tokens, output_tokens=16))
        alone = await ask_prompts(exchange, kind, 3, seed=seed)
        ttft_s, tpot_s = (median(s for one in alone for s in one.latencies_s(name)) for name in ("ttft", "tpot"))
        points.append((tokens, ttft_s, tpot_s))
    streams = Kind("streams", Lengths(input_tokens=PROMPT_TOKENS[0], output_tokens=48))
    beside = await ask_prompts(exchange, streams, _STREAMS, at_once=_STREAMS, seed=seed)
    return Idle(points, median(gap_s for one in beside for gap_s in one.itls_s) / _STREAMS)


async def ask_prompts(exchange: Exchange, kind: Kind, requests: int, *, at_once: int = 1, seed: int) -> list[Record]:
    """Ask first turns of a kind. Raises `BenchError`: one failed."""
    asks = ((index, kind.asks(seed, index)[0]) for index in range(requests))
    records = [answered.record for answered in (await ask_each(exchange, asks, at_once)).values()]
    if wrong := [record for record in records if not record.ok]:
        raise BenchError(f"a prompt of {wrong[0].input_tokens} tokens failed: {wrong[0].error} {wrong[0].detail}")
    return records
