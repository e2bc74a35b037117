"""What nodes say of themselves: `/metrics` after a stage minus `/metrics` before it, and single transfers while it runs.

Transfers come out of `/baton/transfers/trace`. A node remembers the last 64, so it is asked again and again; with more
than that between two looks some are missed. The events stand on wall clock, and are put on the stage's own.
"""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, Self

import msgspec
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from baton.contracts.decoding import DECODE_ERRORS
from baton.contracts.http import TRACE_PATH
from baton.contracts.secret import SecretError, read_secret
from baton.loadtest.client.fetch import fetch
from baton.loadtest.client.http import Address
from baton.loadtest.errors import RunError, UsageError
from baton.loadtest.result import HISTOGRAMS, HistogramMean, Legs, NodeFigures
from baton.loadtest.run.loops import beside

_TRANSFERS: Final = "baton_transfers_total"
_TOO_MUCH: Final = 1 << 53  # from here on a float cannot count by ones
LOOK_EVERY_S: Final = 1.0
# (sum or count, histogram) or (transfers, outcome) → value, summed over other labels.
Scrape = defaultdict[tuple[str, str], float]


def parse_scrape(text: str) -> Scrape:
    """Read what is of interest, summed over other labels.

    Raises `ValueError`: it is not in Prometheus' format, or a value is no count and no time.
    """
    scrape: Scrape = defaultdict(float)
    wanted = {f"{series}_{kind}": (kind, name) for name, series in HISTOGRAMS.items() for kind in ("sum", "count")}
    for sample in samples(text):
        if sample.name == _TRANSFERS:
            scrape["transfers", sample.labels.get("outcome", "")] += sample.value
        elif sample.name in wanted:
            scrape[wanted[sample.name]] += sample.value
    check_counts(scrape.values())
    return scrape


def samples(text: str) -> Iterator[Sample]:
    """Yield what `/metrics` say. Raises `ValueError`: it is not in Prometheus' format."""
    try:
        for family in text_string_to_metric_families(text):
            yield from family.samples
    except LookupError as exc:  # such as for a label without a name
        raise ValueError("it is not in Prometheus' format") from exc


def check_counts(values: Iterable[float]) -> None:
    if not all(abs(value) < _TOO_MUCH for value in values):  # a NaN as well
        raise ValueError("a histogram or a counter has a value that can be no count")


def difference(url: str, before: Scrape, after: Scrape) -> NodeFigures:
    """Return what happened in between. A count that fell means that the node was restarted: then nothing is known."""
    moved = {key: after[key] - before[key] for key in {**after, **before}}
    if any(n < 0 for (kind, _), n in moved.items() if kind != "sum"):
        return NodeFigures(url=url, histograms={}, transfers={}, note="the node was restarted during the stage")
    means = {
        name: HistogramMean(int(n), moved["sum", name] / n)
        for (kind, name), n in moved.items()
        if kind == "count" and n and ("sum", name) in moved
    }
    transfers = {outcome: int(n) for (kind, outcome), n in moved.items() if kind == "transfers" and n}
    return NodeFigures(url=url, histograms=means, transfers=transfers)


async def scrapes(nodes: Mapping[str, Address]) -> dict[str, Scrape | str]:
    return dict(zip(nodes, await asyncio.gather(*map(_scrape, nodes.values())), strict=True))


async def _scrape(address: Address) -> Scrape | str:
    try:
        return parse_scrape((await fetch(address, "/metrics", {})).decode())
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


class _Arguments(msgspec.Struct):
    transfer_id: str = ""


class _Event(msgspec.Struct):
    """A Chrome trace event, as far as it is needed."""

    ph: str
    name: str
    args: _Arguments
    ts: float = 0.0  # µs, wall clock
    dur: float = 0.0


_decode = msgspec.json.Decoder(list[_Event]).decode


def token(secret_file: Path | None) -> str:
    """Return what nodes let in; empty where no secret was given. Raises `UsageError`: the file holds no secret."""
    try:
        return read_secret(secret_file).node_token() if secret_file else ""
    except SecretError as exc:
        raise UsageError(f"--secret-file: {exc}") from exc


class LegWatch:
    """Looks at some nodes, within `watching`."""

    def __init__(self, addresses: Iterable[Address], bearer: str) -> None:
        """Without a token nothing is looked at."""
        self._addresses = list(addresses) if bearer else []
        self._headers = {"Authorization": f"Bearer {bearer}"}
        self._spans: dict[str, dict[str, tuple[float, float]]] = {}  # transfer → name → wall clock, s
        self._failures: list[str] = []

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[Self]:
        """Look before, during and after a block. Raises `RunError`: a node cannot be asked."""
        await self._look()
        async with beside(self._watch()):
            yield self
        await self._look_if_possible()

    def legs(self, wanted: Iterable[str], began_wall_s: float) -> list[Legs]:
        return [
            Legs(
                transfer_id=transfer,
                spans={name: (a - began_wall_s, b - began_wall_s) for name, (a, b) in self._spans[transfer].items()},
            )
            for transfer in wanted
            if transfer in self._spans
        ]

    @property
    def note(self) -> str:
        failures = self._failures
        return f"{len(failures)} looks at nodes failed, the last one: {failures[-1]}" if failures else ""

    async def _watch(self) -> None:
        while self._addresses:
            await asyncio.sleep(LOOK_EVERY_S)
            await self._look_if_possible()

    async def _look_if_possible(self) -> None:
        try:
            await self._look()
        except RunError as exc:
            self._failures.append(str(exc))

    async def _look(self) -> None:
        asked = (fetch(address, TRACE_PATH, self._headers) for address in self._addresses)
        for text in await asyncio.gather(*asked):
            try:
                events = _decode(text)
            except DECODE_ERRORS as exc:
                raise RunError(f"{TRACE_PATH} is no trace: {exc}") from exc
            for event in events:
                if event.ph == "X" and event.args.transfer_id:
                    span = (event.ts / 1e6, (event.ts + event.dur) / 1e6)
                    self._spans.setdefault(event.args.transfer_id, {})[event.name] = span
