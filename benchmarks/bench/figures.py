"""From samples to figures: medians, and ratios of what was measured in the same round. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from baton.loadtest.measures.percentile import spread
from benchmarks.bench.interference import Felt
from benchmarks.harness import Spread, ratio
from benchmarks.overlap.figures import NIXL, PLAIN, TWO, UPSTREAM, Measured, bytes_are_right

BATON: Final = "event"  # the policy under which it is measured, and its name among the samples
OTHERS: Final = (TWO, UPSTREAM, NIXL)
TITLES: Final = {
    PLAIN: "one plain server",
    TWO: "two plain servers behind Baton's proxy",
    UPSTREAM: "MooncakeConnector",
    NIXL: "NixlConnector",
    BATON: "Baton",
}
_MOVES_KV: Final = (UPSTREAM, NIXL, BATON)


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstTokens:
    """One combination of link and prompt length."""

    link_mbit_s: int  # 0: unthrottled
    tokens: int
    rounds: int
    ttft_s: Mapping[str, float]  # median, by subject
    ratios: Mapping[str, Spread]  # Baton ÷ the other, of TTFT
    missing_bytes: Sequence[str]  # subjects that cannot have sent all KV
    other_cores: float  # CPU that other processes used in that time


@dataclass(frozen=True, slots=True, kw_only=True)
class Felts:
    """All rounds of interference on one link."""

    link_mbit_s: int
    rounds: Mapping[str, Sequence[Felt]]  # by subject, in the order taken


@dataclass(frozen=True, slots=True, kw_only=True)
class Streams:
    """What the streams of one subject felt; times in s, medians over the rounds."""

    link_mbit_s: int
    subject: str
    quiet_p99_s: float
    busy_median_s: float
    busy_p99_s: float
    busy_most_s: float  # of all rounds
    long_ttft_s: float
    tokens_share: float  # tokens per second with long prompts ÷ without
    p99_ratio: Spread | None  # Baton ÷ this one; None for Baton


def first_tokens(measured: Measured) -> FirstTokens:
    samples = measured.samples
    return FirstTokens(
        link_mbit_s=measured.cell.link_mbit_s,
        tokens=measured.cell.tokens,
        rounds=len(samples[BATON]),
        ttft_s={name: median(sample.seconds for sample in taken) for name, taken in samples.items()},
        ratios={
            name: ratio([each.seconds for each in samples[BATON]], [each.seconds for each in samples[name]])
            for name in OTHERS
            if name in samples
        },
        missing_bytes=[
            name
            for name in _MOVES_KV
            if name in samples and not all(bytes_are_right(sample, measured.expected_bytes) for sample in samples[name])
        ],
        other_cores=measured.other_cores,
    )


def streams(felts: Felts) -> list[Streams]:
    """Compute the figures of every subject on a link."""
    p99s = {name: [spread(felt.busy_itl_s).p99 for felt in rounds] for name, rounds in felts.rounds.items()}
    found = []
    for name, rounds in felts.rounds.items():
        quiet, busy = (
            [spread(felt.quiet_itl_s) for felt in rounds],
            [spread(felt.busy_itl_s) for felt in rounds],
        )
        found.append(
            Streams(
                link_mbit_s=felts.link_mbit_s,
                subject=name,
                quiet_p99_s=median(each.p99 for each in quiet),
                busy_median_s=median(each.median for each in busy),
                busy_p99_s=median(p99s[name]),
                busy_most_s=max(each.most for each in busy),
                long_ttft_s=median(spread(felt.long_ttft_s).median for felt in rounds),
                tokens_share=median(q.mean / b.mean for q, b in zip(quiet, busy, strict=True)),
                p99_ratio=None if name == BATON or BATON not in p99s else ratio(p99s[BATON], p99s[name]),
            )
        )
    return found
