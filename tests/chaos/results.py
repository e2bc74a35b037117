"""Outcomes as lines of JSON, so that several short runs add up to one report."""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import msgspec

from tests.chaos.outcome import Outcome
from tests.chaos.schedule import Cut, Kill, Stall

_KINDS: Final[dict[str, type[Kill | Stall | Cut]]] = {kind.__name__: kind for kind in (Kill, Stall, Cut)}
_COUNTERS: Final = ("results", "later", "reasons")


def add(path: Path, outcomes: Iterable[Outcome]) -> None:
    """Append outcomes to a file."""
    with path.open("ab") as file:
        for outcome in outcomes:
            kind = type(outcome.fault).__name__
            file.write(msgspec.json.encode({"kind": kind} | msgspec.to_builtins(outcome)) + b"\n")


def read(path: Path) -> list[Outcome]:
    """Read all outcomes of a file; none if it is not there."""
    return [_read(msgspec.json.decode(line)) for line in path.read_bytes().splitlines()] if path.exists() else []


def _read(line: dict[str, Any]) -> Outcome:
    fault = msgspec.convert(line.pop("fault"), _KINDS[line.pop("kind")])
    return Outcome(fault=fault, **(line | {name: Counter(line[name]) for name in _COUNTERS}))
