"""Least squares on relative errors; no coefficient is below 0 but those that may be. Small, and without numpy, which `loadtest` does not need.

Relative to what is fitted, not to what was measured: else a slow measurement counts for less than a fast one, and the fit
comes out below the mean.
"""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from statistics import fmean
from typing import Final, NamedTuple

from baton.loadtest.errors import RunError
from baton.loadtest.plan.calibration import Fit

_SINGULAR: Final = 1e-9  # of a column, that is not explained by the columns before it
_REFITS: Final = 2  # after a first one, relative to what was measured
_LEAST: Final = 0.1  # of what was measured: nothing is fitted as smaller, for weighing


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
    found = _solve_relative(rows, [row.measured for row in rows], names, what, signed)
    for _ in range(_REFITS):
        sizes = [max(_sum(row.values, found), row.measured * _LEAST) for row in rows]
        found = _solve_relative(rows, sizes, names, what, signed)
    coefficients = tuple(found.get(at, 0.0) for at in range(len(names)))
    return Fitted(coefficients, quality(rows, coefficients))


def _solve_relative(
    rows: Sequence[Row], sizes: Sequence[float], names: Sequence[str], what: str, signed: AbstractSet[str]
) -> dict[int, float]:
    scaled = [
        ([value / size for value in row.values], row.measured / size) for row, size in zip(rows, sizes, strict=True)
    ]
    active = [at for at in range(len(names)) if any(values[at] for values, _ in scaled)]
    while True:
        found = solve(scaled, active, names, what)
        least = min((at for at in active if names[at] not in signed), key=lambda at: found[at], default=None)
        if least is None or found[least] >= 0:
            return found
        active.remove(least)  # a negative time makes no sense: what is left explains what it can


def _sum(values: Sequence[float], coefficients: Mapping[int, float]) -> float:
    return sum(share * values[at] for at, share in coefficients.items())


def quality(rows: Sequence[Row], coefficients: Sequence[float]) -> Fit:
    fitted = [sum(a * b for a, b in zip(coefficients, row.values, strict=True)) for row in rows]
    measured = [row.measured for row in rows]
    mean = fmean(measured)
    rest = sum((a - b) ** 2 for a, b in zip(fitted, measured, strict=True))
    total = sum((value - mean) ** 2 for value in measured)
    errors = [abs(a - b) / b for a, b in zip(fitted, measured, strict=True)]
    return Fit(
        rows=len(rows),
        r_squared=1 - rest / total if total else 1.0,
        mean_error=fmean(errors),
        worst_error=max(errors),
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
