"""A machine as a value.

Two machines behave alike if they are equal in everything but sequence numbers and times. Sequence numbers are only
compared with each other, so `network.py` keeps their order and no more. Every float is a time; no clock takes part in
safety, so all of them rest at 0 and a time-out is an event that may happen whenever it is armed.
"""

from collections.abc import Hashable, Iterator
from enum import Enum
from types import FunctionType
from typing import Any

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
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, PLAIN):
        return value
    if isinstance(value, float | FunctionType):
        return None
    if isinstance(value, list | tuple):
        return tuple(map(freeze, value))
    if isinstance(value, dict):
        return tuple((freeze(key), freeze(item)) for key, item in value.items())  # the order may matter
    if isinstance(value, set | frozenset):
        return tuple(sorted(value))
    pictures = (bool(item) if name in WORDS else freeze(item) for name, item in fields(value))
    return (type(value).__name__, *pictures)


def in_order(table: dict[Any, Any]) -> None:
    """Sort a dictionary by its keys, where their order makes no difference."""
    items = sorted(table.items())
    table.clear()
    table.update(dict(items))


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


def fields(value: Any) -> Iterator[tuple[str, Any]]:
    """Name and value of every attribute that counts, whether in slots or in a dictionary."""
    names = getattr(value, "__struct_fields__", None) or getattr(value, "__dict__", None)
    if names is None:
        names = [name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())]
    for name in names:
        if name not in IGNORED:
            yield name, getattr(value, name)
