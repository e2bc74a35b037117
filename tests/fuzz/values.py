"""Seeded mutations of plain values: what a JSON or msgpack parser could hand us instead of what was meant."""

import random
from typing import Any

HALF_A_PAIR = "\ud800"  # JSON may escape it; it is no text
EDGES: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    -1,
    1,
    2**31,
    2**63 - 1,
    2**64 - 1,
    -(2**63),
    10**40,
    0.0,
    1.0,
    float("nan"),
    float("inf"),
    -1e308,
    "",
    "\0",
    "\n",
    HALF_A_PAIR,
    "é",
    "x" * 5_000,
    b"",
    b"\xff" * 40,
    [],
    {},
    [[]],
    {"": None},
)


def mutate(value: Any, random_: random.Random) -> Any:
    """Return `value` with one place inside it changed."""
    if isinstance(value, dict) and value and random_.random() < 0.9:
        return _mutate_dict(value, random_)
    if isinstance(value, list | tuple) and value and random_.random() < 0.7:
        return _mutate_list(list(value), random_)
    if isinstance(value, str) and value and random_.random() < 0.6:
        return _mutate_text(value, random_)
    if isinstance(value, bytes) and value and random_.random() < 0.6:
        return flip_bits(value, random_)
    if isinstance(value, int) and not isinstance(value, bool) and random_.random() < 0.5:
        return value ^ (1 << random_.randrange(70)) if random_.random() < 0.5 else value + random_.choice((-1, 1))
    return random_.choice(EDGES)


def flip_bits(data: bytes, random_: random.Random) -> bytes:
    """Return `data` with one to four bits flipped."""
    changed = bytearray(data)
    for _ in range(random_.randint(1, 4)):
        changed[random_.randrange(len(changed))] ^= 1 << random_.randrange(8)
    return bytes(changed)


def _mutate_dict(value: dict[Any, Any], random_: random.Random) -> dict[Any, Any]:
    changed = dict(value)
    key = random_.choice(list(changed))
    kind = random_.random()
    if kind < 0.75:
        changed[key] = mutate(changed[key], random_)
    elif kind < 0.85:
        del changed[key]
    elif kind < 0.95:
        changed[random_.choice(("extra", key * 2 if isinstance(key, str) else "other"))] = random_.choice(EDGES)
    else:
        other = random_.choice(list(changed))
        changed[key], changed[other] = changed[other], changed[key]
    return changed


def _mutate_list(items: list[Any], random_: random.Random) -> list[Any]:
    at, kind = random_.randrange(len(items)), random_.random()
    if kind < 0.6:
        items[at] = mutate(items[at], random_)
    elif kind < 0.75:
        del items[at]
    elif kind < 0.9:
        items.insert(at, random_.choice((items[at], *EDGES)))
    else:
        items *= random_.choice((2, 100))
    return items


def _mutate_text(text: str, random_: random.Random) -> str:
    at = random_.randrange(len(text))
    change = random_.choice((text[at].swapcase(), chr(ord(text[at]) ^ 1), "", text[at] * 2, "\0", "\n", HALF_A_PAIR))
    return text[:at] + change + text[at + 1 :]
