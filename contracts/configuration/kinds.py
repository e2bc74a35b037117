"""Kinds of settings: a type and the values of it that make sense, for `schema.py` to name and `values.py` to check."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any


@dataclass(frozen=True, slots=True)
class Range:
    """The numbers that a setting accepts: `low` to `high`, both included unless `above` leaves `low` out."""

    low: float
    high: float | None = None
    above: bool = False

    def holds(self, number: float) -> bool:
        return (number > self.low if self.above else number >= self.low) and (self.high is None or number <= self.high)

    def __str__(self) -> str:
        if self.high is None:
            return f"{'above' if self.above else 'at least'} {self.low:g}"
        return f"between {self.low:g} and {self.high:g}"


@dataclass(frozen=True, slots=True)
class Form:
    """The texts that a setting accepts."""

    pattern: str  # regular expression of the whole text
    expected: str  # the same for people

    def holds(self, text: str) -> bool:
        return re.fullmatch(self.pattern, text) is not None


class ShellWords:
    """Mark of a list whose text form is split as a shell splits words, not at commas."""


class Mappings:
    """Mark of a list of mappings, whose text form is a JSON list."""


Port = Annotated[int, Range(0, 65535)]
Seconds = Annotated[float, Range(0, above=True)]
Delay = Annotated[float, Range(0)]  # seconds
Share = Annotated[float, Range(0, 1)]
AtLeastOne = Annotated[int, Range(1)]
Number = Annotated[int, Range(0)]
Words = Annotated[tuple[str, ...], ShellWords]
Verify = Annotated[str, Form(r"off|full|sample:[1-9][0-9]*", "off, full or sample:N (every N-th transfer)")]
Objects = Annotated[tuple[Mapping[str, Any], ...], Mappings]
