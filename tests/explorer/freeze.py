"""A machine as a value.

Two machines behave alike if they are equal in everything but sequence numbers and times. Sequence numbers are only
compared with each other: they are left out, as a network may do anything. Every float is a time; no clock takes part in
safety, so all of them rest at 0 and a time-out is an event that may happen whenever it is armed.
"""

from collections.abc import Callable, Hashable, Iterable, Sequence
from enum import Enum
from functools import cache
from operator import attrgetter
from types import FunctionType
from typing import Any, cast

import msgspec

# What does not change, counts up for ever, only feeds reports, or is seen from elsewhere: a machine, from its flows.
IGNORED = frozenset({"_sequence", "_settings", "marks", "scene", "timings_s", "_producer", "_consumer"})
# Of a node: what is part of it in another place too, and what a request has been told.
IGNORED |= {"_fan_out", "_gather", "_pool", "_sides", "integrity", "_config", "_patience_s", "_totals", "_refusals"}
IGNORED |= {"_lock", "_introduction", "_record", "_groups", "_media", "_grid", "_secret", "_answers", "_client_tokens"}
IGNORED |= {"leg", "prompt_token_ids", "_all_token_ids", "reservations", "_loop", "_sync", "_zeroing", "workers"}
WORDS = frozenset({"reason", "ending"})  # for people: the machines only ask whether they are empty
PLAIN = int | str | bytes | None


def freeze(value: Any) -> Hashable:
    """Return a hashable picture of `value`, times left out."""
    return _picture_of(cast("Hashable", type(value)))(value)


@cache
def _picture_of(kind: type) -> Callable[[Any], Hashable]:
    if issubclass(kind, Enum):
        return attrgetter("name")
    if issubclass(kind, PLAIN):
        return _itself
    if issubclass(kind, float | FunctionType):
        return _nothing
    if issubclass(kind, list | tuple):
        return _items
    if issubclass(kind, dict):
        return _pairs
    if issubclass(kind, set | frozenset):
        return _elements
    return _attributes


def _itself(value: Hashable) -> Hashable:
    return value


def _nothing(_: object) -> None:
    pass


def _items(value: Iterable[Any]) -> Hashable:
    return tuple([freeze(item) for item in value])


def _pairs(value: dict[Any, Any]) -> Hashable:
    return tuple([(freeze(key), freeze(item)) for key, item in value.items()])  # the order may matter


def _elements(value: Iterable[Any]) -> Hashable:
    return tuple(sorted(value))


def _attributes(value: Any) -> Hashable:
    pictures = [bool(item) if name in WORDS else freeze(item) for name, item in fields(value)]
    return (type(value).__name__, *pictures)


def in_order(table: dict[Any, Any]) -> None:
    """Sort a dictionary by its keys, where their order makes no difference."""
    if len(table) > 1:
        items = sorted(table.items())
        table.clear()
        table.update(items)


def still(value: Any) -> None:
    """Set every time inside `value` to 0, in place."""
    if isinstance(value, list | tuple):
        for item in value:
            still(item)
    elif isinstance(value, dict):
        for key, item in value.items():
            if isinstance(item, float):
                value[key] = 0.0
            else:
                still(item)
    elif not isinstance(value, PLAIN | FunctionType | Enum | float | set | msgspec.Struct):
        for name, item in fields(value):
            if isinstance(item, float):
                setattr(value, name, 0.0)
            else:
                still(item)


def fields(value: Any) -> Iterable[tuple[str, Any]]:
    """Name and value of every attribute that counts, whether in slots or in a dictionary."""
    held = getattr(value, "__dict__", None)
    if held is None:
        return [(name, getattr(value, name)) for name in _slots_of(cast("Hashable", type(value)))]
    return [(name, item) for name, item in held.items() if name not in IGNORED]


@cache
def _slots_of(kind: type) -> Sequence[str]:
    names = getattr(kind, "__struct_fields__", None)
    if names is None:
        names = [name for base in kind.__mro__ for name in getattr(base, "__slots__", ())]
    return [name for name in names if name not in IGNORED]
