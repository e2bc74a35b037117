from itertools import product

import pytest

from baton.loadtest.errors import RunError
from baton.loadtest.plan.command import Prices, cheapest, neighbours
from baton.loadtest.plan.simulate import Shape


def product_like(prefill: int, decode: int) -> float:
    """Both sides lose some, and each can make up for the other."""
    return (1 - 0.5 / prefill) * (1 - 0.7 / decode)


@pytest.mark.parametrize("prices", [Prices(), Prices(3.0, 1.0), Prices(1.0, 2.5)])
@pytest.mark.parametrize("target", [0.3, 0.9, 0.95])
def test_the_cheapest_pair_is_found(target: float, prices: Prices) -> None:
    """As cheap as the best of all pairs."""
    best = min(prices.of(Shape(p, d)) for p, d in product(range(1, 65), repeat=2) if product_like(p, d) >= target)

    found = cheapest(lambda shape: product_like(*shape), target=target, most=64, prices=prices)

    assert product_like(*found) >= target
    assert prices.of(found) == best


def test_where_the_sides_do_not_help_each_other_both_get_what_they_need() -> None:
    assert cheapest(lambda shape: float(shape >= (7, 3) and shape.decode >= 3), target=1.0, most=100) == (7, 3)


def test_a_walk_that_has_gone_too_far_comes_back() -> None:
    """Its steps are of three nodes here."""
    enough = [(100, 10), (101, 5)]

    assert cheapest(
        lambda shape: float(any(shape.prefill >= p and shape.decode >= d for p, d in enough)), target=1.0, most=200
    ) == (101, 5)


def test_thousands_of_nodes_are_not_tried_one_by_one() -> None:
    """Some hundred questions, not 16 million."""
    asked = []

    def ask(shape: Shape) -> float:
        asked.append(shape)
        prefill, decode = shape
        return float(prefill >= 1200 and decode >= 700 and (prefill - 1100) * (decode - 600) >= 40_000)

    found = cheapest(ask, target=1.0, most=4096)

    assert found.prefill + found.decode <= 2115  # the best is 1300 + 800
    assert len(asked) < 250


def test_promises_that_cannot_be_kept_are_refused() -> None:
    """With what the most nodes would keep."""
    with pytest.raises(RunError, match=r"even 16 prefill and 16 decode nodes keep the SLOs of 42.0% of the requests"):
        cheapest(lambda _: 0.42, target=0.9, most=16)


def test_neighbours_show_the_cliff() -> None:
    """One node more and less, or a tenth; none without nodes."""
    assert neighbours(Shape(1, 2), 10) == [(1, 1), (1, 2), (1, 3), (2, 1), (2, 2), (2, 3)]
    assert Shape(1100, 180) in neighbours(Shape(1000, 200), 4096)
