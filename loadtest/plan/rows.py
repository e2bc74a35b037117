"""Measured requests → equations → coefficients. Pure, and without numpy, which `loadtest` does not need.

alone      TTFT of one request at a time   = P's steps + exposed transfer + D's first step + overhead
in line    time between two first tokens   = P's steps, of which several users' prompts share some
decode     TPOT of a request               = D's step with what was in it on average
mixed      TTFT less what is simulated     = overhead of first tokens, and what others on P and on D add to it

Least squares on relative errors; no coefficient is below 0 but those that may be. Relative to what is fitted, not to
what was measured: else a slow measurement counts for less than a fast one, and the fit comes out below the mean.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from statistics import fmean
from typing import Final, NamedTuple

import msgspec

from baton.loadtest.errors import RunError
from baton.loadtest.measures.record import Record
from baton.loadtest.plan.calibration import Calibration, Decode, Fit
from baton.loadtest.plan.demand import Demand
from baton.loadtest.plan.nodes import step_s
from baton.loadtest.plan.simulate import Shape, simulate

_SINGULAR: Final = 1e-9  # of a column, that is not explained by the columns before it
_REFITS: Final = 2  # after a first one, relative to what was measured
_LEAST: Final = 0.1  # of what was measured: nothing is fitted as smaller, for weighing
PREFILL: Final = {  # field of a `Prefill` → what it is called in errors
    "step_s": "the step",
    "prompt_s": "the prompt",
    "token_s": "the token",
    "token_context_s": "the context",
}
DECODE: Final = {  # likewise of a `Decode`
    "step_s": "the step",
    "sequence_s": "the sequence",
    "several_s": "the second sequence",
    "context_token_s": "the context",
    "arrival_s": "the arrival",
}
MIXED_BUSY: Final = 0.4  # of the busier node, in the mixed run
OVERHEADS: Final = ("the overhead", "others on P", "others on D")
FEW: Final = 5  # requests that met others on a node, or none, from which nothing is concluded
BUSY: Final = 0.55  # of the TTFT of one request alone; two users who never meet on P have a first token every 0.5


class Row(NamedTuple):
    """One measurement: what was `measured` is explained by Σ coefficient · value."""

    values: tuple[float, ...]
    measured: float


class Fitted(NamedTuple):
    """Coefficients, in the order of the values."""

    coefficients: tuple[float, ...]
    quality: Fit


def fit(rows: Sequence[Row], names: Sequence[str], what: str, signed: AbstractSet[str] = frozenset()) -> Fitted:
    """Fit one coefficient for each name; those in `signed` may be below 0. Raises `RunError`: rows do not suffice."""
    if len(rows) <= len(names):
        raise RunError(f"{what}: {len(rows)} measurements are too few for {len(names)} coefficients: measure more")
    coefficients = _solve_relative(rows, [row.measured for row in rows], names, what, signed)
    for _ in range(_REFITS):
        sizes = [max(_dot(row.values, coefficients), row.measured * _LEAST) for row in rows]
        coefficients = _solve_relative(rows, sizes, names, what, signed)
    return Fitted(coefficients, quality(rows, coefficients))


def _solve_relative(
    rows: Sequence[Row], sizes: Sequence[float], names: Sequence[str], what: str, signed: AbstractSet[str]
) -> tuple[float, ...]:
    scaled = [
        ([value / size for value in row.values], row.measured / size) for row, size in zip(rows, sizes, strict=True)
    ]
    active = [at for at in range(len(names)) if any(values[at] for values, _ in scaled)]
    while True:
        found = solve(scaled, active, names, what)
        least = min((at for at in active if names[at] not in signed), key=lambda at: found[at], default=None)
        if least is None or found[least] >= 0:
            return tuple(found.get(at, 0.0) for at in range(len(names)))
        active.remove(least)  # a negative time makes no sense: what is left explains what it can


def quality(rows: Sequence[Row], coefficients: Sequence[float]) -> Fit:
    fitted = [_dot(row.values, coefficients) for row in rows]
    measured = [row.measured for row in rows]
    mean = fmean(measured)
    rest = sum((a - b) ** 2 for a, b in zip(fitted, measured, strict=True))
    total = sum((value - mean) ** 2 for value in measured)
    errors = [abs(a - b) / b for a, b in zip(fitted, measured, strict=True)]
    return Fit(
        rows=len(rows), r_squared=1 - rest / total if total else 1.0, mean_error=fmean(errors), worst_error=max(errors)
    )


def solve(
    rows: Sequence[tuple[Sequence[float], float]], active: Sequence[int], names: Sequence[str], what: str
) -> dict[int, float]:
    """Solve by orthogonal columns (Gram–Schmidt, modified), which loses fewer digits than normal equations.

    Rows are values, and what they explain; returned are the coefficients of the values at the `active` places. Raises
    `RunError`: the rows do not tell coefficients apart.
    """
    columns = {at: [values[at] for values, _ in rows] for at in active}
    lengths = {at: _dot(columns[at], columns[at]) for at in active}
    rest = [measured for _, measured in rows]
    shares: dict[int, float] = {}
    overlaps: dict[tuple[int, int], float] = {}
    for place, at in enumerate(active):
        column = columns[at]
        length = _dot(column, column)
        if length <= _SINGULAR * lengths[at]:
            others = ", ".join(names[other] for other in active[:place])
            raise RunError(
                f"{what}: these measurements do not tell {names[at]} from {others}: vary lengths and users more"
            )
        shares[at] = _dot(column, rest) / length
        rest = [value - shares[at] * part for value, part in zip(rest, column, strict=True)]
        for other in active[place + 1 :]:
            overlaps[at, other] = _dot(column, columns[other]) / length
            columns[other] = [
                value - overlaps[at, other] * part for value, part in zip(columns[other], column, strict=True)
            ]
    found: dict[int, float] = {}
    for place in range(len(active) - 1, -1, -1):
        at = active[place]
        found[at] = shares[at] - sum(overlaps[at, other] * found[other] for other in active[place + 1 :])
    return found


def _dot(one: Sequence[float], other: Sequence[float]) -> float:
    return sum(a * b for a, b in zip(one, other, strict=True))


class PrefillCell(NamedTuple):
    """Requests of one prompt length that ask for one token each."""

    tokens: int
    alone: Sequence[Record]
    in_line: Mapping[int, Sequence[Record]]  # by users, two or more


def calibrate(prefill: Sequence[PrefillCell], decode: Sequence[Sequence[Record]], known: Calibration) -> Calibration:
    """Fit the times of a calibration. `known`: one with its limits and link, whose times are 0."""
    by_decode = fit(decode_rows(decode), [*DECODE.values()], "decode")
    speed = msgspec.structs.replace(known.decode, **dict(zip(DECODE, by_decode.coefficients, strict=True)))
    names = [*PREFILL.values(), OVERHEADS[0]]
    by_prefill = fit(prefill_rows(prefill, speed, known), names, "prefill", signed={OVERHEADS[0]})
    *times_s, overhead_s = by_prefill.coefficients
    return msgspec.structs.replace(
        known,
        prefill=msgspec.structs.replace(known.prefill, **dict(zip(PREFILL, times_s, strict=True))),
        decode=speed,
        overhead_s=overhead_s,
        fits={"prefill": by_prefill.quality, "decode": by_decode.quality},
    )


def mixed_rate_per_s(found: Calibration, tokens: float, answer_tokens: int) -> float:
    """Return the rate of requests, `tokens` long in the mean, at which the busier node of a pair is `MIXED_BUSY`."""
    decode_s = answer_tokens * step_s(found.decode, 1, tokens) + found.decode.arrival_s
    return MIXED_BUSY / max(found.prefill.prompt_time_s(tokens), decode_s)


def with_overheads(found: Calibration, mixed: Sequence[Sequence[Record]]) -> Calibration:
    """Replace the overheads by those that make simulated first tokens of mixed loads (open loops) come as measured ones.

    What a first token costs besides steps depends on what its nodes do at that time, and neither requests one at a time
    nor users in line meet what an open loop meets. So it is measured in one.
    """
    plain = msgspec.structs.replace(found, overhead_s=0.0, overhead_queued_s=0.0, overhead_busy_s=0.0)
    late = [row for records in mixed for row in _late(records, plain)]
    told = [at for at in (1, 2) if FEW <= sum(values[at] for values, _ in late) <= len(late) - FEW]
    try:
        shares = solve(late, [0, *told], OVERHEADS, "first tokens of an open loop")
    except RunError:  # a request that met others on the one node met some on the other
        shares = solve(late, [0, *told[:1]], OVERHEADS, "first tokens of an open loop")
    return msgspec.structs.replace(
        plain, overhead_s=shares[0], overhead_queued_s=shares.get(1, 0.0), overhead_busy_s=shares.get(2, 0.0)
    )


def _late(records: Sequence[Record], found: Calibration) -> Iterator[tuple[tuple[float, float, float], float]]:
    """Say of each request whether it met others on P and on D, and by how much its first token came later than simulated."""
    asked = sorted((one for one in records if one.ok and one.ttft_s is not None), key=lambda one: one.started_s)
    load = [
        Demand(due_s=one.started_s, input_tokens=one.input_tokens, output_tokens=one.output_tokens) for one in asked
    ]
    simulated = simulate(load, found, Shape(1, 1))
    for measured, predicted, job in zip(asked, simulated.records, simulated.jobs, strict=True):
        met = (1.0, float(job.behind > 0), float(job.beside > 0))
        yield met, (measured.ttft_s or 0.0) - (predicted.ttft_s or 0.0)


def prefill_rows(cells: Sequence[PrefillCell], speed: Decode, known: Calibration) -> list[Row]:
    """Return the equations for P's steps and the overhead.

    Users in line come in two groups: while one is computed, in one step if it fits, the other one's prompts arrive. So
    of `users` prompts there are two steps, unless a step cannot hold so much. Raises `RunError`: they never kept it
    busy.
    """
    rows, busy, batched = [], 0, known.prefill.max_num_batched_tokens
    for tokens, alone, in_line in cells:
        steps = math.ceil(tokens / batched)
        rest = (1.0, float(tokens), tokens * tokens / 2)
        ttft_s = fmean(record.ttft_s for record in alone if record.ttft_s is not None)
        first_step_s = step_s(speed, 1, tokens)
        exposed_s = tokens / steps * known.link.token_s / known.link.layers  # after the last step
        rest_s = max(ttft_s - first_step_s - exposed_s, ttft_s / 100)
        rows.append(Row((float(steps), *rest, 1.0), rest_s))
        for users, records in in_line.items():
            between_s = between_first_tokens_s(records, users)
            if between_s * users / 2 > BUSY * ttft_s:
                rows.append(Row((max(2 / users, tokens / batched), *rest, 0.0), between_s))
                busy += 1
    if not busy:
        raise RunError(
            "several users never kept the prefill node busy, so its share of a first token is unknown: use longer prompts"
        )
    return rows


def between_first_tokens_s(records: Sequence[Record], users: int) -> float:
    """Return the mean time between first tokens, over whole rounds of all users but the first. `RunError`: too few."""
    at = sorted(record.first_token_s for record in records if record.ttft_s is not None)
    span = (len(at) - 1) // users * users - users
    if span < users:
        raise RunError(f"prefill: too few answers to {users} users: ask more often (--samples)")
    return (at[-1] - at[-1 - span]) / span


def decode_rows(runs: Sequence[Sequence[Record]]) -> list[Row]:
    rows = []
    for records in runs:
        decoded = [record for record in records if record.ok and record.tpot_s]
        spans = [(one.first_token_s, one.last_token_s, one) for one in decoded]
        rows += [_row(record, spans) for record in decoded if record.output_tokens > 2]
    return rows


def _row(record: Record, spans: Sequence[tuple[float, float, Record]]) -> Row:
    """Return the equation of one request's time per token: which sequences were in the step of each of its gaps.

    So every step counts once, and a slow one not more.

    A gap is a step. A request that got a token at its end, the first one included, was in it; arrivals at the client
    scatter, so the end is taken a little later for those who begin, and earlier for those who end.
    """
    began_s, ended_s = record.first_token_s, record.last_token_s
    gaps = record.itls_s or (ended_s - began_s,)
    sequences = several = context = 0.0
    at = began_s
    for gap in gaps:
        here = [one for first_s, last_s, one in spans if one is record or first_s - gap * 5 / 4 < at < last_s - gap / 2]
        sequences += len(here) / len(gaps)
        several += (len(here) > 1) / len(gaps)
        context += sum(one.input_tokens + one.output_tokens / 2 for one in here) / len(gaps)
        at += gap
    arrivals = sum(began_s < other.started_s < ended_s for _, _, other in spans)
    made = record.output_tokens - 1
    return Row((1.0, sequences, several, context, arrivals / made), (ended_s - began_s) / made)
