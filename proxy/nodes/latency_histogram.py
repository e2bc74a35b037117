"""Histograms that cost a chunk next to nothing: plain lists, made into Prometheus' form at the scrape. Pure."""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import accumulate
from operator import add
from typing import Final

import msgspec
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.utils import floatToGoString

GAP_BOUNDS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0, 5.0)
RATIO_BOUNDS: Final = (0.5, 0.67, 0.8, 0.87, 0.93, 1.0, 1.07, 1.15, 1.25, 1.5, 2.0, 4.0)
LEG_BOUNDS_S: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 120.0)


class LatencyHistogram:
    """One histogram; `counts` has one number for each bound and one for what is beyond the last."""

    __slots__ = ("bounds_s", "counts", "sum_s")

    def __init__(self, bounds_s: tuple[float, ...]) -> None:
        self.bounds_s = bounds_s
        self.counts = [0] * (len(bounds_s) + 1)
        self.sum_s = 0.0

    def observe(self, time_s: float) -> None:
        """Count one. `Client.write` has these lines once more: a call would cost as much as they do."""
        self.counts[bisect_left(self.bounds_s, time_s)] += 1
        self.sum_s += time_s


class NodeTimes:
    """What is timed of one node; a prefill node has the first and the last alone."""

    __slots__ = ("answered", "ended", "first_bytes", "gaps", "handover", "inter_token_prediction", "prediction")

    def __init__(self) -> None:
        self.answered = LatencyHistogram(LEG_BOUNDS_S)  # prefill leg: sent → whole answer
        self.first_bytes = LatencyHistogram(LEG_BOUNDS_S)  # decode leg of a stream: sent → first bytes
        self.ended = LatencyHistogram(LEG_BOUNDS_S)  # decode leg: sent → last byte handed on
        self.handover = LatencyHistogram(LEG_BOUNDS_S)  # the prefill node's answer → the decode node's first bytes
        self.gaps = LatencyHistogram(GAP_BOUNDS_S)  # between chunks of a stream
        # Seen ÷ predicted time, of a prompt's first token and, by the node's report, between two tokens.
        self.prediction = LatencyHistogram(RATIO_BOUNDS)
        self.inter_token_prediction = LatencyHistogram(RATIO_BOUNDS)


class Tally(msgspec.Struct, frozen=True, array_like=True):
    """The same as workers tell each other: a tenth of the lines that it becomes."""

    role: str
    url: str
    counts: dict[str, list[int]]  # by the names of `NodeTimes`; what is empty is left out
    sums_s: dict[str, float]

    def add_to(self, family: HistogramMetricFamily, name: str, bounds_s: Sequence[float], *labels: str) -> None:
        """Add one of its histograms to a family of series, if it has that."""
        if (counts := self.counts.get(name)) is not None:
            names = [*map(floatToGoString, bounds_s), "+Inf"]
            buckets = list(zip(names, map(float, accumulate(counts)), strict=True))
            family.add_metric([self.role, self.url, *labels], buckets, sum_value=self.sums_s[name])


def tally(role: str, url: str, times: NodeTimes) -> Tally:
    found: dict[str, LatencyHistogram] = {name: getattr(times, name) for name in NodeTimes.__slots__}
    seen = {name: each for name, each in found.items() if any(each.counts)}
    return Tally(
        role, url, {name: list(each.counts) for name, each in seen.items()}, {n: each.sum_s for n, each in seen.items()}
    )


def tallied(groups: Iterable[Iterable[Tally]]) -> list[Tally]:
    found: dict[tuple[str, str], Tally] = {}
    for group in groups:
        for each in group:
            known = found.get((each.role, each.url))
            found[each.role, each.url] = each if known is None else _sum(known, each)
    return list(found.values())


def _sum(one: Tally, other: Tally) -> Tally:
    counts, sums_s = dict(one.counts), dict(one.sums_s)
    for name, more in other.counts.items():
        counts[name] = list(map(add, counts[name], more)) if name in counts else more
        sums_s[name] = sums_s.get(name, 0.0) + other.sums_s[name]
    return Tally(one.role, one.url, counts, sums_s)
