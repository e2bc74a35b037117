"""One axis for two machines' clocks."""

import pytest

from baton.proxy.dashboard.dashboard import offset

MARKS = ({"reserved": 1.0, "commit": 5.0}, {"reserve_sent": 0.5, "commit_received": 4.9})


@pytest.mark.parametrize("skew_s", [0.0, 3600.0, -0.004])
@pytest.mark.parametrize("ways_s", [(0.001, 0.001), (0.0, 0.003), (0.010, 0.002)])
def test_the_true_offset_lies_within_the_uncertainty(skew_s: float, ways_s: tuple[float, float]) -> None:
    """Whatever the clocks differ by, and however long either message took."""
    to_p, to_d = ways_s
    decode = {"reserve_sent": 0.002, "commit_received": 0.2}
    prefill = {"reserved": 0.002 + skew_s + to_p, "commit": 0.2 + skew_s - to_d}

    found = offset(prefill, decode)

    assert found is not None
    assert abs(found.at_s - skew_s) <= found.uncertainty_s + 1e-6
    assert found.uncertainty_s == pytest.approx((to_p + to_d) / 2, abs=1e-6)


@pytest.mark.parametrize("missing", ["reserved", "commit", "reserve_sent", "commit_received"])
def test_without_one_of_the_four_instants_nothing_is_claimed(missing: str) -> None:
    """A transfer that failed has no COMMIT to compare."""
    prefill, decode = ({name: at for name, at in marks.items() if name != missing} for marks in MARKS)

    assert offset(prefill, decode) is None
