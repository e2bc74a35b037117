"""Histograms that cost a chunk next to nothing: plain lists, made into Prometheus' form at the scrape. Pure."""

from bisect import bisect_left
from collections.abc import Iterable
from itertools import accumulate
from typing import Final

from prometheus_client.core import HistogramMetricFamily
from prometheus_client.utils import floatToGoString

GAP_BOUNDS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0, 5.0)
LEG_BOUNDS_S: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 120.0)


class Times:
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

    def add_to(self, family: HistogramMetricFamily, labels: Iterable[str]) -> None:
        """Add it to a family of series, unless it is empty."""
        if not any(self.counts):
            return
        names = [*map(floatToGoString, self.bounds_s), "+Inf"]
        family.add_metric(
            list(labels), list(zip(names, map(float, accumulate(self.counts)), strict=True)), sum_value=self.sum_s
        )


class NodeTimes:
    """What is timed of one node; a prefill node has the first alone."""

    __slots__ = ("answered", "ended", "first_bytes", "gaps", "handover")

    def __init__(self) -> None:
        self.answered = Times(LEG_BOUNDS_S)  # prefill leg: sent → whole answer
        self.first_bytes = Times(LEG_BOUNDS_S)  # decode leg of a stream: sent → first bytes
        self.ended = Times(LEG_BOUNDS_S)  # decode leg: sent → last byte handed on
        self.handover = Times(LEG_BOUNDS_S)  # the prefill node's answer → the decode node's first bytes
        self.gaps = Times(GAP_BOUNDS_S)  # between chunks of a stream
