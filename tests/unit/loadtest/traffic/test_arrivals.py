import math
from statistics import fmean, pstdev

import pytest

from baton.loadtest.traffic.arrivals import arrivals


def distances(due: list[float]) -> list[float]:
    """Time between neighbours, the first one after the beginning."""
    return [after - before for before, after in zip([0.0, *due], due, strict=False)]


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_distances_scatter_as_a_gamma_distribution_does(burstiness: float) -> None:
    """Standard deviation ÷ mean is 1/√burstiness; 1 for Poisson."""
    gaps = distances(arrivals(20_000, 8.0, burstiness=burstiness, seed=1))

    assert fmean(gaps) == pytest.approx(1 / 8)
    assert pstdev(gaps) / fmean(gaps) == pytest.approx(1 / math.sqrt(burstiness), rel=0.05)


def test_arrivals_are_the_same_again_and_may_be_a_metronome() -> None:
    """Another seed gives others; the last request is due when the rate says so.

    A ramp goes linearly with the index, from the first rate to the other one.
    """
    assert arrivals(50, 5.0, seed=3)[-1] == pytest.approx(10.0)
    assert arrivals(9, 1.0, seed=4) == arrivals(9, 1.0, seed=4) != arrivals(9, 1.0, seed=5)
    assert arrivals(4, 2.0, burstiness=math.inf) == pytest.approx([0.5, 1.0, 1.5, 2.0])
    assert distances(arrivals(3, 1.0, burstiness=math.inf, ramp_to_per_s=3.0)) == pytest.approx([1, 1 / 2, 1 / 3])
