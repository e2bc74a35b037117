"""Combinations of named axes in which every two values of two axes meet at least once. Pure, and the same each time."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations, product

Case = dict[str, str]
Pair = frozenset[tuple[str, str]]


def pairwise(axes: Mapping[str, Sequence[str]], may_be: Callable[[Case], bool] = lambda _: True) -> list[Case]:
    """Return few cases that cover every possible pair.

    Args:
        axes: name → values, the plainest value first.
        may_be: whether a case makes sense. It must hold for the case of plainest values.
    """
    plainest = {name: values[0] for name, values in axes.items()}
    assert may_be(plainest), "the plainest case must be possible"
    missing = {pair for pair in _all_pairs(axes) if _completed(dict(pair), axes, plainest, may_be, set()) is not None}
    cases: list[Case] = []
    while missing:
        seed = dict(min(missing, key=sorted))
        case = _completed(seed, axes, plainest, may_be, missing)
        assert case is not None  # it could be completed before
        missing -= _pairs_of(case)
        cases.append(case)
    return cases


def _completed(
    fixed: Case,
    axes: Mapping[str, Sequence[str]],
    plainest: Case,
    may_be: Callable[[Case], bool],
    missing: set[Pair],
) -> Case | None:
    """Fill up a case, axis by axis, with the value that covers most of what is missing; None if that is impossible."""
    case = {**plainest, **fixed}
    if not may_be(case):
        found = next((made for made in _variations(case, axes, fixed) if may_be(made)), None)
        if found is None:
            return None
        case = found
    for name, values in axes.items():
        if name in fixed:
            continue
        options = [option for value in values if may_be(option := {**case, name: value})]
        case = max(options, key=lambda option: len(missing & _pairs_of(option)))  # the first of equals
    return case


def _variations(case: Case, axes: Mapping[str, Sequence[str]], fixed: Case) -> Iterator[Case]:
    """Yield the case with one or two of its free axes changed."""
    free = [name for name in axes if name not in fixed]
    for name in free:
        for value in axes[name]:
            yield {**case, name: value}
    for one, other in combinations(free, 2):
        for first, second in product(axes[one], axes[other]):
            yield {**case, one: first, other: second}


def _all_pairs(axes: Mapping[str, Sequence[str]]) -> Iterator[Pair]:
    for one, other in combinations(axes, 2):
        for first, second in product(axes[one], axes[other]):
            yield frozenset(((one, first), (other, second)))


def _pairs_of(case: Case) -> set[Pair]:
    return {frozenset(pair) for pair in combinations(case.items(), 2)}
