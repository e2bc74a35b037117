"""From samples to figures: what a perfect overlap would take, how much of it was reached; and their table. Pure.

    C  time to first token of a plain server, prefill and decode in one
    X  the transfer alone: the same bytes through Mooncake, nothing computed
    m  hand-overs, layers × chunks of the prompt

A perfect overlap sends each hand-over while the next one is computed. Whichever of C and X takes longer is on the way
all the time, and of the other one only the last (or first) hand-over shows: `ideal = max(C + X/m, X + C/m)`.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any, Final, NamedTuple

from baton.loadtest.report.text import aligned

PLAIN: Final = "plain"  # gives C
RAW: Final = "raw"  # gives X
UPSTREAM: Final = "mooncake"  # vLLM's MooncakeConnector
NIXL: Final = "nixl"  # vLLM's NixlConnector, pulling
TWO: Final = "two plain"  # two servers that each do everything, behind the same proxy
REFERENCES: Final = (PLAIN, RAW)

GRACE_S: Final = 0.010  # what the hand-over may cost besides bytes: D's wake-up, its one-token step, its answer
HEADINGS: Final = (
    *("link", "tokens", "chunk", "n", "C", "X", "ideal", "subject", "TTFT", "min–max"),
    *("÷ideal+10", "÷mooncake", "hidden", "bytes", "prefill", "commit→1st", "other CPU"),
)


class Cell(NamedTuple):
    """A link rate, a prompt length and a prefill chunk size."""

    link_mbit_s: int  # 0: unthrottled
    tokens: int
    chunk_tokens: int


class Kv(NamedTuple):
    """How much KV a prompt makes."""

    layers: int
    block_tokens: int
    block_bytes: int  # of all regions together

    def bytes_of(self, tokens: int) -> int:
        """Return the bytes that travel, in whole blocks."""
        return math.ceil(tokens / self.block_tokens) * self.block_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One request, or one raw push."""

    seconds: float  # to the first token at the client; raw: to the last byte acknowledged
    wire_bytes: int = 0  # left P over the data link in that time, headers included
    kv_bytes: int | None = None  # the sender's own count of acknowledged bytes; None where the sender does not count
    prefill_s: float | None = None  # on P, as vLLM measures it: first scheduled to first token
    after_commit_s: float | None = None  # COMMIT left P to first token at the client


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """All samples of one cell."""

    cell: Cell
    layers: int
    expected_bytes: int  # KV of the prompt
    samples: Mapping[str, Sequence[Sample]]  # by subject
    other_cores: float  # CPU that other processes used in that time, in cores
    noisy_rounds: int  # rounds that were kept although others used the CPU
    failures: Sequence[str] = ()  # why rounds were dropped


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """Figures of one subject in one cell."""

    subject: str
    ttft_s: float
    fastest_s: float
    slowest_s: float
    to_ideal: float | None  # ttft ÷ (ideal + grace)
    to_upstream: float | None
    hidden_share: float | None
    bytes_right: bool
    prefill_ratio: float | None  # P's prefill ÷ the plain server's
    after_commit_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """One cell, computed."""

    measured: Measured
    plain_s: float | None  # C
    raw_s: float | None  # X
    ideal_s: float | None
    lines: Sequence[Line]


def handovers(layers: int, tokens: int, chunk_tokens: int) -> int:
    return layers * math.ceil(tokens / chunk_tokens)


def ideal_s(plain_s: float, raw_s: float, m: int) -> float:
    return max(plain_s + raw_s / m, raw_s + plain_s / m)


def hidden_share(plain_s: float, raw_s: float, ttft_s: float) -> float | None:
    """Return which share of the shorter of C and X hid behind the other; None if the shorter is at most `GRACE_S`: fixed costs outweigh it."""
    shorter = min(plain_s, raw_s)
    return (plain_s + raw_s - ttft_s) / shorter if shorter > GRACE_S else None


def figures(measured: Measured) -> Figures:
    cell = measured.cell
    seconds = {name: median(s.seconds for s in samples) for name, samples in measured.samples.items() if samples}
    plain, raw = seconds.get(PLAIN), seconds.get(RAW)
    both = (plain, raw) if plain is not None and raw is not None else None
    ideal = ideal_s(*both, handovers(measured.layers, cell.tokens, cell.chunk_tokens)) if both else None
    plain_prefill = _median(sample.prefill_s for sample in measured.samples.get(PLAIN, ()))
    lines = []
    for name, samples in measured.samples.items():
        if name in REFERENCES or not samples:
            continue
        ttft, prefill = seconds[name], _median(sample.prefill_s for sample in samples)
        lines.append(
            Line(
                subject=name,
                ttft_s=ttft,
                fastest_s=min(sample.seconds for sample in samples),
                slowest_s=max(sample.seconds for sample in samples),
                to_ideal=ttft / (ideal + GRACE_S) if ideal is not None else None,
                to_upstream=ttft / seconds[UPSTREAM] if UPSTREAM in seconds else None,
                hidden_share=hidden_share(*both, ttft) if both else None,
                bytes_right=all(bytes_are_right(sample, measured.expected_bytes) for sample in samples),
                prefill_ratio=prefill / plain_prefill if prefill and plain_prefill else None,
                after_commit_s=_median(sample.after_commit_s for sample in samples),
            )
        )
    return Figures(measured=measured, plain_s=plain, raw_s=raw, ideal_s=ideal, lines=lines)


def bytes_are_right(sample: Sample, expected_bytes: int) -> bool:
    """Tell whether all KV was sent: by the sender's count, if it has one, and by the link's, which counts headers too.

    A connector that pushes only the last chunk looks fast; it must fail here.
    """
    return sample.kv_bytes in (None, expected_bytes) and sample.wire_bytes >= expected_bytes


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def table(cells: Sequence[Figures]) -> str:
    shown = aligned([HEADINGS, *(_row(cell, line) for cell in cells for line in cell.lines)])
    return "\n".join([*shown, *(f"dropped: {reason}" for cell in cells for reason in cell.measured.failures)])


def link_name(mbit_s: int) -> str:
    if not mbit_s:
        return "none"
    return f"{mbit_s // 1000}G" if mbit_s % 1000 == 0 else f"{mbit_s}M"


def to_plain(cells: Sequence[Figures]) -> list[dict[str, Any]]:
    return [asdict(cell) | {"cell": cell.measured.cell._asdict()} for cell in cells]


def _row(figures: Figures, line: Line) -> tuple[str, ...]:
    measured = figures.measured
    cell = measured.cell
    return (
        link_name(cell.link_mbit_s),
        str(cell.tokens),
        str(cell.chunk_tokens),
        str(len(measured.samples[line.subject])),
        _ms(figures.plain_s),
        _ms(figures.raw_s),
        _ms(figures.ideal_s),
        line.subject,
        _ms(line.ttft_s),
        f"{_ms(line.fastest_s)}–{_ms(line.slowest_s)}",
        _ratio(line.to_ideal),
        _ratio(line.to_upstream),
        "–" if line.hidden_share is None else f"{line.hidden_share:.0%}",
        "all" if line.bytes_right else "MISSING",
        _ratio(line.prefill_ratio),
        _ms(line.after_commit_s),
        f"{measured.other_cores:.2f}" + (f" ({measured.noisy_rounds} noisy)" if measured.noisy_rounds else ""),
    )


def _ms(seconds: float | None) -> str:
    return "–" if seconds is None else f"{seconds * 1000:.1f}"


def _ratio(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"
