"""Faded sums against what they are by hand."""

import pytest

from baton.proxy.routing.fair_share import HALF_LIFE_S, FairShare


@pytest.mark.parametrize("half_lives", [1, 30, 41, 60], ids=lambda number: f"after {number} half-lives")
def test_amounts_fade_by_half(half_lives: int) -> None:
    """However they are written down: after a long time they are brought back to size."""
    shares, now_s = FairShare(), 1000.0 + half_lives * HALF_LIFE_S
    shares.add(0, 300.0, 1000.0)
    shares.add(0, 100.0, now_s)
    shares.add(1, 40.0, now_s)
    unit, faded = shares.unit(now_s), 300.0 * 0.5**half_lives

    assert unit == (1 if half_lives > 40 else 2**half_lives)
    assert [shares.given(slot) / unit for slot in range(3)] == pytest.approx([100 + faded, 40, 0])
    of_all = (100 + faded + 40 + 20) / 4
    assert shares.limit(20.0, now_s, times=1.5, nodes=4, slack=7.0) / unit == pytest.approx(1.5 * of_all + 7)
    shares.forget(0)
    assert shares.given(0) == 0
    assert shares.limit(0.0, now_s, times=1.0, nodes=1, slack=0.0) / unit == pytest.approx(40)
    shares.forget(1)
    assert shares.given(1) == 0


def test_after_years_without_work_nothing_overflows() -> None:
    shares = FairShare()
    shares.add(0, 300.0, 0.0)

    assert shares.unit(1e9) > 0
