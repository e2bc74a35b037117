"""From samples to medians and ratios round by round, and how they are told: Markdown, a picture, JSON of all. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any, Final

from baton.loadtest.measures.percentile import spread
from baton.loadtest.report.html import standalone
from baton.loadtest.report.plots import Labels, Series, line_plot
from baton.loadtest.result import rounded
from benchmarks.bench.interference import Felt
from benchmarks.harness import Spread, markdown_table, ratio
from benchmarks.overlap.figures import NIXL, PLAIN, TWO, UPSTREAM, Measured, bytes_are_right, link_name

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
    p99s = {name: [spread(felt.busy_itl_s).p99 for felt in rounds] for name, rounds in felts.rounds.items()}
    found = []
    for name, rounds in felts.rounds.items():
        quiet = [spread(felt.quiet_itl_s) for felt in rounds]
        busy = [spread(felt.busy_itl_s) for felt in rounds]
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


def first_token_table(cells: Sequence[FirstTokens]) -> str:
    names = (PLAIN, *OTHERS, BATON)
    head = ["link, bit/s", "tokens", *(TITLES[name] for name in names), *(f"Baton ÷ {TITLES[name]}" for name in OTHERS)]
    rows = []
    for cell in cells:
        values = [_ms(cell.ttft_s.get(name)) + ("*" if name in cell.missing_bytes else "") for name in names]
        rows.append([_link(cell.link_mbit_s), str(cell.tokens), *values, *(_ratio(cell.ratios.get(o)) for o in OTHERS)])
    return markdown_table(head, rows)


def streams_table(lines: Sequence[Streams]) -> str:
    head = ["link, bit/s", "", "P99 ITL, streams alone", "median ITL", "P99 ITL", "longest gap", "tokens/s ÷ alone"]
    head += ["TTFT of the long prompts", "Baton's P99 ITL ÷ this"]
    rows = [
        [
            *(_link(line.link_mbit_s), TITLES[line.subject], _ms(line.quiet_p99_s), _ms(line.busy_median_s)),
            *(_ms(line.busy_p99_s), _ms(line.busy_most_s), f"{line.tokens_share:.2f}", _ms(line.long_ttft_s)),
            _ratio(line.p99_ratio),
        ]
        for line in lines
    ]
    return markdown_table(head, rows)


def picture(cells: Sequence[FirstTokens], link_mbit_s: int) -> str:
    chosen = [cell for cell in cells if cell.link_mbit_s == link_mbit_s]
    series = [
        Series(TITLES[name], [(cell.tokens, cell.ttft_s[name] * 1000) for cell in chosen if name in cell.ttft_s])
        for name in (*OTHERS, BATON)
    ]
    labels = Labels(
        name="ttft",
        title=f"Time to first token at {_link(link_mbit_s)} bit/s",
        description="Median time to first token against the prompt's length; the report's table has the figures.",
        x="tokens in the prompt",
        y="TTFT (ms)",
    )
    drawn = [line for line in series if line.points]
    return standalone(line_plot(labels, drawn, marks=True), [line.name for line in drawn])


def to_plain(about: Mapping[str, Any], measured: Sequence[Measured], felts: Sequence[Felts]) -> dict[str, Any]:
    plain = {
        "about": dict(about),
        "first_tokens": [asdict(first_tokens(each)) for each in measured],
        "streams": [asdict(line) for each in felts for line in streams(each)],
        "first_token_samples": [asdict(each) | {"cell": each.cell._asdict()} for each in measured],
        "stream_samples": [asdict(each) for each in felts],
    }
    short: dict[str, Any] = rounded(plain, 5)  # below 10 µs is what the file would mostly consist of
    return short


def _link(mbit_s: int) -> str:
    return link_name(mbit_s) if mbit_s else "unthrottled"


def _ms(seconds: float | None) -> str:
    if seconds is None:
        return "–"
    return f"{seconds * 1000:.0f}" if seconds >= 0.1 else f"{seconds * 1000:.1f}"


def _ratio(value: Spread | None) -> str:
    return "" if value is None else value.text()
