"""Which cells there are: every two values of two axes meet in one. Pure."""

import math
import shlex
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

from baton.node.startup.flags import ranks_of
from tests.support.pairwise import Case, pairwise

SHAPES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "1": "",
        "tp2": "-tp 2",
        "pp2": "-pp 2",
        "dp2": "-dp 2",
        "tp4": "-tp 4",  # twice as many ranks as the model has KV heads
        "tp2 pp2": "-tp 2 -pp 2",
        "tp2 dp2": "-tp 2 -dp 2",
        "pp2 dp2": "-pp 2 -dp 2",
    }
)
AXES: Final[Mapping[str, Sequence[str]]] = MappingProxyType(
    {
        "prefill": tuple(SHAPES),
        "decode": tuple(SHAPES),
        "blocks": ("32", "64", "128"),  # tokens, on both nodes
        "chunk": ("4096", "256"),  # tokens per step of P
        "hits": ("none", "prefill", "decode", "both"),  # who has the first half of each prompt in its prefix cache
    }
)
MOST_PROCESSES: Final = 6  # of both nodes together: what two cores start within seconds


class Cell(NamedTuple):
    """Two nodes, and what is known before the first prompt."""

    prefill: Sequence[str]  # flags
    decode: Sequence[str]
    warm_prefill: bool
    warm_decode: bool


def flags_of(shape: str) -> list[str]:
    return shlex.split(SHAPES[shape])


def processes(case: Case) -> int:
    """How many ranks the two nodes have together."""
    return sum(math.prod(ranks_of(flags_of(case[role]))) for role in ("prefill", "decode"))


def cases() -> list[Case]:
    found = pairwise(AXES, lambda case: processes(case) <= MOST_PROCESSES)
    return sorted(found, key=processes)


def cell_of(case: Case) -> Cell:
    prefill, decode = ([*flags_of(case[role]), "--block-size", case["blocks"]] for role in ("prefill", "decode"))
    prefill += ["--max-num-batched-tokens", case["chunk"]]
    return Cell(prefill, decode, case["hits"] in ("prefill", "both"), case["hits"] in ("decode", "both"))


def name_of(case: Case) -> str:
    hits = "" if case["hits"] == "none" else f"; hits on {case['hits']}"
    return f"{case['prefill']} to {case['decode']}; blocks of {case['blocks']}; chunks of {case['chunk']}{hits}"


# In `make test`: heads split over stages, and engines.
REPRESENTATIVE: Final[Sequence[Case]] = tuple(
    dict(zip(AXES, values, strict=True))
    for values in (
        ("pp2", "tp2", "128", "4096", "both"),
        ("dp2", "dp2", "128", "4096", "none"),
    )
)
