"""What nodes tell of single transfers while a stage runs: their legs and pushes, out of `/baton/transfers/trace`.

A node remembers the last 64 transfers, so it is asked again and again; with more than that between two looks some are
missed. The events stand on wall clock, and are put on the stage's own.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, Self

import msgspec

from baton.contracts.http import TRACE_PATH
from baton.contracts.secret import SecretError, read_secret
from baton.loadtest.client.address import parse_address
from baton.loadtest.client.fetch import fetch
from baton.loadtest.errors import RunError, UsageError
from baton.loadtest.result import Legs
from baton.loadtest.run.beside import beside

LOOK_EVERY_S: Final = 1.0
_TIMEOUT_S: Final = 10.0


class _Arguments(msgspec.Struct):
    transfer_id: str = ""
    name: str = ""


class Event(msgspec.Struct):
    """A Chrome trace event, as far as it is needed."""

    ph: str
    name: str
    args: _Arguments
    ts: float = 0.0  # µs, wall clock
    dur: float = 0.0


Spans = dict[str, dict[str, tuple[float, float]]]  # transfer → name → wall clock, s
_decode = msgspec.json.Decoder(list[Event]).decode


def token(secret_file: Path | None) -> str:
    """Return what nodes let in; empty where no secret was given. Raises `UsageError`: the file holds no secret."""
    try:
        return read_secret(secret_file).node_token() if secret_file else ""
    except SecretError as exc:
        raise UsageError(f"--secret-file: {exc}") from exc


class LegWatch:
    """Looks at some nodes, within `watching`."""

    def __init__(self, urls: Sequence[str], bearer: str) -> None:
        """Without a token nothing is looked at."""
        self._addresses = [parse_address(url.removesuffix("/metrics")) for url in urls] if bearer else []
        self._headers = {"Authorization": f"Bearer {bearer}"}
        self._spans: Spans = {}
        self._failures: list[str] = []

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[Self]:
        """Look before, during and after a block. Raises `RunError`: a node cannot be asked."""
        await self._look()
        async with beside(self._watch()):
            yield self
        await self._look_if_possible()

    def legs(self, wanted: Iterable[str], began_wall_s: float) -> list[Legs]:
        return relative(self._spans, wanted, began_wall_s)

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
        asked = (fetch(address, TRACE_PATH, self._headers, _TIMEOUT_S) for address in self._addresses)
        for text in await asyncio.gather(*asked):
            try:
                take(self._spans, _decode(text))
            except msgspec.DecodeError as exc:
                raise RunError(f"{TRACE_PATH} is no trace: {exc}") from exc


def take(spans: Spans, events: Iterable[Event]) -> None:
    for event in events:
        if event.ph == "X" and event.args.transfer_id:
            span = (event.ts / 1e6, (event.ts + event.dur) / 1e6)
            spans.setdefault(event.args.transfer_id, {})[event.name] = span


def relative(spans: Mapping[str, Mapping[str, Any]], wanted: Iterable[str], began_wall_s: float) -> list[Legs]:
    return [
        Legs(
            transfer_id=name,
            spans={kind: (began - began_wall_s, ended - began_wall_s) for kind, (began, ended) in spans[name].items()},
        )
        for name in wanted
        if name in spans
    ]


def wall_clock_of(perf_s: float) -> float:
    return time.time() - time.perf_counter() + perf_s
