"""Series of several workers, added up. Pure.

Counters and histograms add up over all workers that there ever were; gauges over those that answer. A gauge that is no
sum, such as a node's state, is not made here but from the workers' views (`node_views.py`).
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import msgspec
from prometheus_client.core import Metric

_LASTING: Final = frozenset(("counter", "histogram"))  # what a worker leaves behind when it ends
_CREATED: Final = "_created"


class Sample(msgspec.Struct, frozen=True, array_like=True):
    """One line of the text format."""

    name: str
    labels: dict[str, str]
    value: float


class Family(msgspec.Struct, frozen=True):
    """All lines of one name."""

    name: str
    help: str
    kind: str
    samples: list[Sample]


def families(metrics: Iterable[Metric]) -> list[Family]:
    return [
        Family(
            each.name, each.documentation, each.type, [Sample(s.name, dict(s.labels), s.value) for s in each.samples]
        )
        for each in metrics
    ]


def metrics(found: Iterable[Family]) -> Iterator[Metric]:
    for family in found:
        metric = Metric(family.name, family.help, family.kind)
        for sample in family.samples:
            metric.add_sample(sample.name, sample.labels, sample.value)
        yield metric


def lasting(found: Iterable[Family]) -> list[Family]:
    return [family for family in found if family.kind in _LASTING]


def added_up(groups: Iterable[Sequence[Family]]) -> list[Family]:
    """Add up lines of the same name and labels; of a series' time of creation, the first counts."""
    heads: dict[str, Family] = {}
    sums: dict[str, dict[tuple[str, tuple[tuple[str, str], ...]], float]] = {}
    for group in groups:
        for family in group:
            heads.setdefault(family.name, family)
            lines = sums.setdefault(family.name, {})
            for sample in family.samples:
                key = sample.name, tuple(sorted(sample.labels.items()))
                known = lines.get(key)
                lines[key] = sample.value if known is None else _joined(sample.name, known, sample.value)
    return [
        Family(
            name, head.help, head.kind, [Sample(line, dict(labels), value) for (line, labels), value in lines.items()]
        )
        for (name, head), lines in zip(heads.items(), sums.values(), strict=True)
    ]


def _joined(name: str, known: float, more: float) -> float:
    return min(known, more) if name.endswith(_CREATED) else known + more
