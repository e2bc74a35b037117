"""The stable stage: from when concurrency first reached its maximum until it first left it.

In a closed loop a request that ends is followed by the next one a moment later. Such a dip is no end: concurrency has left
its maximum when it stays below it for longer than `REFILL_S`. Counted are the completed requests that began inside the
stage, the one that reached the maximum included, so the burst at the beginning of a run and its tail are outside.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from baton.loadtest.measures.percentile import Spread, spread
from baton.loadtest.measures.record import Record

REFILL_S: Final = 0.05


class Stage(NamedTuple):
    """When concurrency stood at its maximum; seconds since the run's beginning."""

    began_s: float
    ended_s: float
    concurrency: int


class Row(NamedTuple):
    """One line of the table."""

    name: str
    unit: str
    spread: Spread


class Stable(NamedTuple):
    """The stage and its figures."""

    stage: Stage
    requests: int
    rows: list[Row]


def find_stage(records: Sequence[Record]) -> Stage | None:
    if not records:
        return None
    changes = sorted([(r.started_s, 1) for r in records] + [(r.ended_s, -1) for r in records])
    levels: list[tuple[float, int]] = []  # from when on how many were in flight
    level = 0
    for at, step in changes:
        level += step
        levels.append((at, level))
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
