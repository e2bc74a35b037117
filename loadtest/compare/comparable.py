"""Whether two runs did the same work under the same load; else their figures differ for that reason."""

from collections.abc import Mapping
from typing import Any, Final

from baton.loadtest.result import Result, StageResult

TOLERANCE: Final = 0.02  # by which mean lengths may differ


def obstacles(a: Result, b: Result) -> list[str]:
    """Return why two runs cannot be compared, a sentence each; none: they can."""
    found = [f"the work differs: {words}" for words in _unequal(a.workload, b.workload)]
    if len(a.stages) != len(b.stages):
        return [*found, f"A has {len(a.stages)} stages and B has {len(b.stages)}"]
    for one, other in zip(a.stages, b.stages, strict=True):
        found += [f"the load of {one.label} differs: {words}" for words in _unequal(one.load, other.load)]
        found += _lengths(one, other)
    return found


def _unequal(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    names = [*one, *(name for name in other if name not in one)]
    return [
        f"{name} is {one.get(name)} in A and {other.get(name)} in B"
        for name in names
        if one.get(name) != other.get(name)
    ]


def _lengths(one: StageResult, other: StageResult) -> list[str]:
    found = []
    for name, field in (("prompts", "input_tokens"), ("answers", "output_tokens")):
        means = [_mean(stage, field) for stage in (one, other)]
        if None in means:
            return [f"no request of {one.label} was completed"]
        first, second = (mean or 0.0 for mean in means)
        if abs(first - second) > TOLERANCE * max(first, second):
            found.append(f"{name} of {one.label} were {first:.1f} tokens in A and {second:.1f} in B on average")
    return found


def _mean(stage: StageResult, field: str) -> float | None:
    values = [getattr(record, field) for record in stage.records if record.ok]
    return sum(values) / len(values) if values else None
