"""What an idle plain server takes, and whether a request kept the SLOs that follow from it."""

from bisect import bisect_left
from collections.abc import Sequence
from statistics import median
from typing import Final, NamedTuple

from baton.loadtest.client.exchange import Exchange
from baton.loadtest.measures.record import Record
from baton.loadtest.measures.serving import is_good
from baton.loadtest.run.loops import ask_each
from baton.loadtest.traffic.made_up import Lengths
from benchmarks.goodput.mixes import Kind, Prompts
from benchmarks.harness import BenchError

TTFT_TIMES: Final = 5.0
TPOT_TIMES: Final = 3.0
PROMPT_TOKENS: Final = (48, 300, 1000, 2000, 3000)
_ANSWER_TOKENS: Final = 16
_SAMPLES: Final = 3
_STREAMS: Final = 8  # that decode at once where the work of a token is measured


class IdlePoint(NamedTuple):
    """Of prompts of one length that have a server for themselves: medians."""

    tokens: int
    ttft_s: float
    tpot_s: float


class Idle(NamedTuple):
    """One plain server."""

    points: Sequence[IdlePoint]  # by length
    token_s: float  # work of one output token among `_STREAMS` streams

    def ttft_s(self, tokens: float) -> float:
        return self._at(tokens).ttft_s

    def tpot_s(self, tokens: float) -> float:
        return self._at(tokens).tpot_s

    def _at(self, tokens: float) -> IdlePoint:
        """Return the point at a length: on the line between its neighbours, beyond the ends the last one."""
        at = bisect_left(self.points, tokens, key=lambda point: point.tokens)
        low, high = self.points[max(at - 1, 0)], self.points[min(at, len(self.points) - 1)]
        share = (tokens - low.tokens) / (high.tokens - low.tokens) if low is not high else 0.0
        between = (one + (other - one) * share for one, other in zip(low[1:], high[1:], strict=True))
        return IdlePoint(round(tokens), *between)


def meets_slos(record: Record, idle: Idle) -> bool:
    """Whether a request was answered whole, its first token and the later ones in time."""
    tokens = record.input_tokens
    limits_s = {"ttft": TTFT_TIMES * idle.ttft_s(tokens), "tpot": TPOT_TIMES * idle.tpot_s(tokens)}
    return record.ok and is_good(record, {name: limit_s * 1000 for name, limit_s in limits_s.items()})


async def measure_idle(exchange: Exchange, seed: int) -> Idle:
    """Ask an idle server. Raises `BenchError`: a request failed."""
    await ask_prompts(exchange, "first", max(PROMPT_TOKENS), 2, seed=seed)  # first passes are slow
    points = []
    for tokens in PROMPT_TOKENS:
        alone = await ask_prompts(exchange, "alone", tokens, _SAMPLES, seed=seed)
        points.append(
            IdlePoint(tokens, *(median(s for r in alone for s in r.latencies_s(n)) for n in ("ttft", "tpot")))
        )
    beside = await ask_prompts(exchange, "beside", PROMPT_TOKENS[0], _STREAMS, at_once=_STREAMS, output=48, seed=seed)
    return Idle(points, median(gap_s for record in beside for gap_s in record.itls_s) / _STREAMS)


async def ask_prompts(
    exchange: Exchange,
    name: str,
    tokens: int,
    requests: int,
    *,
    seed: int,
    at_once: int = 1,
    output: int = _ANSWER_TOKENS,
    spread: float = 0.0,
) -> list[Record]:
    """Ask prompts that come nowhere else. Raises `BenchError`: one failed."""
    lengths = Lengths(input_tokens=tokens, output_tokens=output, spread=spread)
    source = Prompts(Kind(f"{name}/{tokens}", lengths), seed)
    asks = ((index, next(source.script(index))) for index in range(requests))
    records = [answered.record for answered in (await ask_each(exchange, asks, at_once)).values()]
    for record in records:
        if not record.ok:
            raise BenchError(f"a prompt of {record.input_tokens} tokens failed: {record.error} {record.detail}")
    return records
