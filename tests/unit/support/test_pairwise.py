from itertools import combinations, product

from tests.support.pairwise import Case, pairwise

AXES = {"a": ["0", "1", "2"], "b": ["0", "1"], "c": ["0", "1", "2", "3"], "d": ["0", "1"]}


def pairs(cases: list[Case]) -> set[tuple[str, str, str, str]]:
    """Every two values that meet in some case."""
    return {(one, case[one], other, case[other]) for case in cases for one, other in combinations(AXES, 2)}


def test_every_two_values_meet() -> None:
    """In far fewer cases than there are combinations."""
    cases = pairwise(AXES)

    wanted = {(x, a, y, b) for x, y in combinations(AXES, 2) for a, b in product(AXES[x], AXES[y])}
    assert pairs(cases) == wanted
    assert len(cases) <= 16


def test_impossible_cases_are_left_out_and_the_other_pairs_are_not() -> None:
    """A value that is possible only together with a plain one of another axis still meets all the rest."""
    cases = pairwise(AXES, lambda case: not (case["a"] == "2" and case["c"] != "0"))

    assert all(case["c"] == "0" for case in cases if case["a"] == "2")
    lost = {("a", "2", "c", value) for value in "123"}
    wanted = {(x, a, y, b) for x, y in combinations(AXES, 2) for a, b in product(AXES[x], AXES[y])}
    assert pairs(cases) == wanted - lost
