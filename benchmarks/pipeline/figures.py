"""From the tokens of a round to figures, and from rounds to ratios. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final, NamedTuple

from benchmarks.harness import Spread, markdown_table, spread
from benchmarks.overlap.streaming import Answer

NAMES: Final = ("throughput", "TTFT", "ITL")
"""Of a `Round`, in order."""


class Load(NamedTuple):
    """What is asked at once."""

    name: str
    requests: int
    prompt_tokens: int
    answer_tokens: int


class Round(NamedTuple):
    """One load on one server."""

    tokens_per_s: float  # prompts and answers
    ttft_s: float  # median over the requests
    itl_s: float  # median over the requests of their mean gap between tokens; 0 if there was none


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One load on one link, in every way."""

    link_mbit_s: int  # 0: not throttled
    load: Load
    rounds: Mapping[str, Sequence[Round]]  # way → its rounds; the same index was taken one after the other


def round_of(load: Load, answers: Sequence[Answer]) -> Round:
    """Return the figures of requests that began together."""
    took_s = max(answer.times[-1] for answer in answers) - min(answer.began for answer in answers)
    gaps = [
        (answer.times[-1] - answer.times[0]) / (len(answer.times) - 1) for answer in answers if len(answer.times) > 1
    ]
    tokens = load.requests * (load.prompt_tokens + load.answer_tokens)
    return Round(tokens / took_s, median(answer.ttft_s for answer in answers), median(gaps) if gaps else 0.0)


def ratios(cell: Cell, way: str, other: str) -> dict[str, Spread]:
    """Return by how much each figure of a way is that of another, round by round."""
    found = {}
    pairs = list(zip(cell.rounds[way], cell.rounds[other], strict=True))
    for index, name in enumerate(NAMES):
        each = [ours[index] / theirs[index] for ours, theirs in pairs if theirs[index]]
        if each:
            found[name] = spread(each)
    return found


def table(cells: Sequence[Cell], way: str, others: Sequence[str]) -> str:
    """Return a Markdown table: absolute medians of a way, and its ratios to the others as min / median / max."""
    heads = ["link", "load", "figure", f"{way}, median", *(f"÷ {other}" for other in others)]
    rows = []
    for cell in cells:
        against = [ratios(cell, way, other) for other in others]
        link = f"{cell.link_mbit_s} Mbit/s" if cell.link_mbit_s else "loopback"
        for index, name in enumerate(NAMES):
            middle = median(round_[index] for round_ in cell.rounds[way])
            if not middle:
                continue
            shown = f"{middle:.0f} tokens/s" if name == "throughput" else f"{middle * 1000:.1f} ms"
            ends = (f"{each[name].least:.2f} / {each[name].median:.2f} / {each[name].most:.2f}" for each in against)
            rows.append([link, cell.load.name, name, shown, *ends])
    return markdown_table(heads, rows)
