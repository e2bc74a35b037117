"""Figures of a stage: those of vLLM's serving benchmark by its definitions; how requests ended; answers by Baton's path; the stable stage."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final, NamedTuple

from baton.contracts.http import DISAGGREGATED, LOCAL, RECOMPUTED
from baton.loadtest.errors import UsageError
from baton.loadtest.measures.percentile import Spread, spread
from baton.loadtest.measures.record import KINDS, LATENCIES, STATUS, Record

NAMES: Final = ("ttft", "tpot", "e2el")
_PATHS: Final = (DISAGGREGATED, LOCAL, RECOMPUTED)
REFILL_S: Final = 0.05


def parse_slos(words: Sequence[str]) -> dict[str, float]:
    """Read SLOs. Raises `UsageError`: a word is not of the form NAME:MILLISECONDS."""
    slos = {}
    for word in words:
        name, _, limit = word.partition(":")
        try:
            limit_ms = float(limit)
        except ValueError:
            limit_ms = -1.0
        if name not in NAMES or not limit_ms >= 0:
            raise UsageError(f"--goodput {word}: expected NAME:MILLISECONDS with a name of {', '.join(NAMES)}")
        slos[name] = limit_ms
    return slos


def is_good(record: Record, slos_ms: Mapping[str, float]) -> bool:
    """Tell whether a completed request kept all of them; one token or none has a TPOT of 0, as in vLLM's benchmark."""
    return all(taken_s <= limit_ms / 1000 for name, limit_ms in slos_ms.items() for taken_s in record.latencies_s(name))


def errors_by_kind(records: Sequence[Record]) -> dict[str, int]:
    """Count failures, in the order of `KINDS`; a status is named with its number (`status 503`)."""
    counts = Counter(_name(record) for record in records if not record.ok)
    return dict(sorted(counts.items(), key=lambda item: (KINDS.index(item[0].partition(" ")[0]), item[0])))


def paths(records: Sequence[Record]) -> dict[str, int]:
    """Count completed requests by `x-baton-path`; empty where the server is no Baton proxy."""
    counts = Counter(record.path for record in records if record.ok and record.path)
    return {name: counts[name] for name in (*_PATHS, *sorted(set(counts) - set(_PATHS))) if name in counts}


def _name(record: Record) -> str:
    return f"{STATUS} {record.status}" if record.error == STATUS else record.error


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """One stage. Failed requests count in `failed` alone."""

    completed: int
    failed: int
    duration_s: float
    input_tokens: int
    output_tokens: int
    peak_output_tokens_per_s: float
    peak_concurrent_requests: int
    good: int | None  # requests within all SLOs; None: no SLO was given
    ttft: Spread  # s, as all below
    tpot: Spread
    itl: Spread
    second: Spread  # from the first token to the second
    e2el: Spread
    queue: Spread

    @property
    def requests_per_s(self) -> float:
        return self._per_s(self.completed)

    @property
    def goodput_per_s(self) -> float | None:
        return None if self.good is None else self._per_s(self.good)

    @property
    def output_tokens_per_s(self) -> float:
        return self._per_s(self.output_tokens)

    @property
    def tokens_per_s(self) -> float:
        return self._per_s(self.input_tokens + self.output_tokens)

    def _per_s(self, count: int) -> float:
        return count / self.duration_s if self.duration_s else 0.0


def serving(records: Sequence[Record], duration_s: float, slos_ms: Mapping[str, float]) -> Serving:
    done = [record for record in records if record.ok]
    tokens, requests = by_second(done)
    return Serving(
        completed=len(done),
        failed=len(records) - len(done),
        duration_s=duration_s,
        input_tokens=sum(record.input_tokens for record in done),
        output_tokens=sum(record.output_tokens for record in done),
        peak_output_tokens_per_s=float(max(tokens, default=0)),
        peak_concurrent_requests=max(requests, default=0),
        good=sum(is_good(record, slos_ms) for record in done) if slos_ms else None,
        second=spread(record.itls_s[0] for record in done if record.itls_s),
        queue=spread(record.queued_s for record in done),
        **{name: spread(each for record in done for each in record.latencies_s(name)) for name in LATENCIES},
    )


def by_second(done: Sequence[Record]) -> tuple[list[int], list[int]]:
    """Return, for each whole second since the first request, tokens received and requests in flight at any time of it; as vLLM's benchmark."""
    if not done:
        return [], []
    began = min(record.started_s for record in done)
    seconds = math.ceil(max(record.last_token_s for record in done) - began) + 1
    tokens, requests = [0] * seconds, [0] * seconds
    for record in done:
        at = record.started_s - began + (record.ttft_s or 0.0)
        tokens[int(at)] += 1
        for gap in record.itls_s:
            at += gap
            tokens[min(int(at), seconds - 1)] += 1
        for second in range(int(record.started_s - began), int(record.last_token_s - began) + 1):
            requests[second] += 1
    return tokens, requests


class Stage(NamedTuple):
    """From when concurrency first reached its maximum until it stayed below it for longer than `REFILL_S`; in s since the run began.

    A shorter dip is no end: in a closed loop a request that ends is followed by the next one a moment later.
    """

    began_s: float
    ended_s: float
    concurrency: int


class Row(NamedTuple):
    """One line of the table."""

    name: str
    unit: str
    spread: Spread


class Stable(NamedTuple):
    """The stage and its figures: of completed requests that began in it, so without the burst at a run's beginning and its tail."""

    stage: Stage
    requests: int
    rows: list[Row]


def find_stage(records: Sequence[Record]) -> Stage | None:
    if not records:
        return None
    changes = sorted([(r.started_s, 1) for r in records] + [(r.ended_s, -1) for r in records])
    counts = accumulate(step for _, step in changes)
    levels = list(zip((at for at, _ in changes), counts, strict=True))  # from when on how many were in flight
    most = max(level for _, level in levels)
    began = next(at for at, level in levels if level == most)
    left: float | None = None
    for at, level in levels:
        if at < began or (at == began and level < most):
            continue
        if left is not None and at - left > REFILL_S:
            break
        left = None if level == most else (at if left is None else left)
    return Stage(began, levels[-1][0] if left is None else left, most)


def stable(records: Sequence[Record]) -> Stable | None:
    stage = find_stage(records)
    if stage is None:
        return None
    inside = [r for r in records if r.ok and stage.began_s <= r.started_s <= stage.ended_s]

    rows = [
        Row(name.upper(), "ms", spread(each * 1000 for record in inside for each in record.latencies_s(name)))
        for name in ("e2el", "ttft", "tpot", "itl")
    ]
    per_s = (record.output_tokens / record.latency_s for record in inside if record.latency_s)
    rows += [
        Row("InputTokens", "tokens", spread(record.input_tokens for record in inside)),
        Row("OutputTokens", "tokens", spread(record.output_tokens for record in inside)),
        Row("OutputTokenThroughput", "tokens/s", spread(per_s)),
    ]
    return Stable(stage, len(inside), rows)
