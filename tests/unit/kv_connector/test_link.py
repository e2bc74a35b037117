"""When the sender next looks after its pushes."""

import pytest

from kv_connector.worker_side.link import MAX_SLEEP_S, MIN_SLEEP_S, Link

MIB = 1 << 20


def learnt(rate: float) -> Link:
    """A link over which pushes have long travelled at `rate` bytes per second."""
    link = Link()
    for i in range(1, 200):
        link.end(int(rate), float(i), i + 1.0)
    return link


def test_the_rate_is_learnt_from_what_has_ended() -> None:
    """The first guess is soon forgotten."""
    assert learnt(25e6).bytes_per_s == pytest.approx(25e6, rel=1e-3)


def test_a_push_behind_another_is_timed_from_the_end_of_that_one() -> None:
    """Two calls of 1 s each that were submitted together do not look like half the rate."""
    link = learnt(1e6)

    link.end(1_000_000, 500.0, 501.0)
    link.end(1_000_000, 500.0, 502.0)

    assert link.bytes_per_s == pytest.approx(1e6, rel=1e-3)


def test_the_sleep_ends_before_the_push_should() -> None:
    """Otherwise an early end would never be seen, and the estimate never mended."""
    link = learnt(25e6)

    slept = link.sleep_s(1_000_000, 1_000.0, 1_000.0)

    assert 0.035 < slept < 0.04


def test_each_look_comes_nearer() -> None:
    """A push as long as expected is looked at a few times only."""
    link, now, looks = learnt(25e6), 1_000.0, 0
    while now < 1_000.04:
        now += link.sleep_s(1_000_000, 1_000.0, now)
        looks += 1

    assert looks <= 5
    assert now - 1_000.04 < 0.002


def test_a_late_push_is_looked_at_ever_less_often() -> None:
    """A peer that has stopped reading costs no CPU."""
    link = learnt(25e6)

    assert link.sleep_s(1_000, 1_000.0, 1_000.1) == pytest.approx(0.002)
    assert link.sleep_s(1_000, 1_000.0, 1_100.0) == MAX_SLEEP_S


def test_a_sleep_is_never_shorter_than_a_look_is_worth() -> None:
    """The sender does not spin."""
    assert Link().sleep_s(1, 1_000.0, 1_000.0) == MIN_SLEEP_S


def test_an_immeasurably_short_push_teaches_nothing() -> None:
    """A refused or tiny push would otherwise make the link look infinitely fast."""
    link = learnt(25e6)

    link.end(MIB, 2_000.0, 2_000.00001)

    assert link.bytes_per_s == pytest.approx(25e6, rel=1e-3)
