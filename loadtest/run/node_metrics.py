"""What nodes say of themselves: `/metrics` after a stage minus `/metrics` before it."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from prometheus_client.parser import text_string_to_metric_families

from baton.loadtest.client.address import parse_address
from baton.loadtest.client.fetch import fetch
from baton.loadtest.errors import RunError
from baton.loadtest.result import HISTOGRAMS, HistogramMean, NodeFigures

_TRANSFERS: Final = "baton_transfers_total"


@dataclass(slots=True)
class Scrape:
    """One look at a node."""

    sums: dict[str, float] = field(default_factory=dict)
    counts: dict[str, float] = field(default_factory=dict)
    transfers: dict[str, float] = field(default_factory=dict)


def parse_scrape(text: str) -> Scrape:
    """Read what is of interest, summed over other labels. Raises `ValueError`: it is not in Prometheus' format."""
    scrape, wanted = Scrape(), {series: name for name, series in HISTOGRAMS.items()}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            series, _, kind = sample.name.rpartition("_")
            if sample.name == _TRANSFERS:
                outcome = sample.labels.get("outcome", "")
                scrape.transfers[outcome] = scrape.transfers.get(outcome, 0.0) + sample.value
            elif series in wanted and kind in ("sum", "count"):
                into = scrape.sums if kind == "sum" else scrape.counts
                into[wanted[series]] = into.get(wanted[series], 0.0) + sample.value
    return scrape


def difference(url: str, before: Scrape, after: Scrape) -> NodeFigures:
    """Return what happened in between. A count that fell means that the node was restarted: then nothing is known."""
    for name, count in (*before.counts.items(), *before.transfers.items()):
        if after.counts.get(name, after.transfers.get(name, 0.0)) < count:
            return NodeFigures(url=url, histograms={}, transfers={}, note="the node was restarted during the stage")
    means = {}
    for name, count in after.counts.items():
        n = count - before.counts.get(name, 0.0)
        if n:
            means[name] = HistogramMean(int(n), (after.sums.get(name, 0.0) - before.sums.get(name, 0.0)) / n)
    moved = {name: int(total - before.transfers.get(name, 0.0)) for name, total in after.transfers.items()}
    return NodeFigures(url=url, histograms=means, transfers={name: n for name, n in moved.items() if n})


class NodeMetrics:
    """The nodes whose metrics are looked at."""

    def __init__(self, urls: Sequence[str], timeout_s: float) -> None:
        self._addresses = {url: parse_address(url.removesuffix("/metrics")) for url in urls}
        self._timeout_s = timeout_s

    async def look(self) -> Mapping[str, Scrape | str]:
        found = await asyncio.gather(*map(self._look_at, self._addresses))
        return dict(zip(self._addresses, found, strict=True))

    async def _look_at(self, url: str) -> Scrape | str:
        try:
            text = await fetch(self._addresses[url], "/metrics", {}, self._timeout_s)
            return parse_scrape(text.decode())
        except (RunError, ValueError) as exc:
            return str(exc)


def differences(before: Mapping[str, Scrape | str], after: Mapping[str, Scrape | str]) -> list[NodeFigures]:
    figures = []
    for url, first in before.items():
        second = after[url]
        if isinstance(first, str) or isinstance(second, str):
            note = first if isinstance(first, str) else str(second)
            figures.append(NodeFigures(url=url, histograms={}, transfers={}, note=note))
        else:
            figures.append(difference(url, first, second))
    return figures
