import numpy as np
import pytest

from baton.loadtest.measures.percentile import percentile, spread

SAMPLE = [0.31, 0.02, 0.75, 0.11, 0.99, 0.45, 0.08]


@pytest.mark.parametrize("percent", [0, 1, 25, 33.3, 50, 75, 90, 99, 100])
@pytest.mark.parametrize("sample", [SAMPLE, SAMPLE[:1], SAMPLE[:2], SAMPLE * 30])
def test_percentiles_are_numpys(sample: list[float], percent: float) -> None:
    """What vLLM prints is numpy's default, linear between ranks."""
    assert percentile(sorted(sample), percent) == pytest.approx(float(np.percentile(sample, percent)), abs=1e-15)


def test_a_fixed_sample_by_hand() -> None:
    """Ten values: P90 lies nine tenths of the way from the first to the last rank, at 9.1."""
    got = spread(float(value) for value in range(10, 0, -1))

    assert (got.n, got.mean, got.least, got.most, got.median) == (10, 5.5, 1.0, 10.0, 5.5)
    assert (got.p75, got.p90, got.p99) == pytest.approx((7.75, 9.1, 9.91))
    assert got.std == pytest.approx(float(np.std(range(1, 11))))


def test_an_empty_sample_is_zero() -> None:
    """As in vLLM's table."""
    assert spread([]) == (0, 0, 0, 0, 0, 0, 0, 0, 0)
