import pytest

from baton.contracts.configuration.schema import ProxyConfig
from baton.proxy.nodes.circuit_breaker import BUCKETS, MAX_OPEN_FACTOR, MIN_OUTCOMES, Breaker, BreakerState
from tests.support.clock import Clock

SETTINGS = ProxyConfig(breaker_failures=3, breaker_failure_share=0.5, breaker_window_s=20.0, breaker_open_s=2.0)


class Judged:
    """A breaker, its clock, and what it said of its changes."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.changes: list[tuple[str, str]] = []
        self.breaker = Breaker(SETTINGS, self.clock, lambda state, reason: self.changes.append((state, reason)))

    def fail(self, times: int = 1, *, may_open: bool = True) -> None:
        for _ in range(times):
            self.breaker.failed("connect", may_open=may_open)

    def open(self) -> Breaker:
        """Open the breaker and wait until a trial is due."""
        self.fail(SETTINGS.breaker_failures)
        self.clock.now_s += SETTINGS.breaker_open_s
        return self.breaker


@pytest.fixture
def judged() -> Judged:
    return Judged()


def test_failures_in_a_row_open_it(judged: Judged) -> None:
    judged.fail(SETTINGS.breaker_failures - 1)
    assert judged.breaker.admits

    judged.fail()

    assert (judged.breaker.state, judged.breaker.admits) == (BreakerState.OPEN, False)
    assert judged.breaker.reason == "3 requests in a row failed: connect"


def test_a_success_ends_a_row(judged: Judged) -> None:
    for _ in range(50):
        judged.fail(SETTINGS.breaker_failures - 1)
        for _ in range(2 * SETTINGS.breaker_failures):
            judged.breaker.succeeded()

    assert judged.breaker.state is BreakerState.CLOSED


@pytest.mark.parametrize("pause_s", [0.0, SETTINGS.breaker_window_s / 2, SETTINGS.breaker_window_s])
def test_a_share_of_the_window_opens_it(judged: Judged, pause_s: float) -> None:
    """A node on which every second request fails never fails three times in a row; what left the window is forgotten."""
    for _ in range(MIN_OUTCOMES // 2 - 1):
        judged.clock.now_s += 1
        judged.breaker.succeeded()
        judged.fail()
    assert judged.breaker.state is BreakerState.CLOSED
    judged.clock.now_s += pause_s

    judged.breaker.succeeded()
    judged.fail()

    assert judged.breaker.reason == (
        "50% of the latest requests failed: connect" if pause_s < SETTINGS.breaker_window_s else ""
    )


def test_what_is_kept_of_a_window_does_not_grow_with_the_traffic(judged: Judged) -> None:
    for _ in range(300):
        judged.clock.now_s += 0.1
        judged.breaker.succeeded()

    assert len(judged.breaker._window._buckets) <= BUCKETS


def test_one_trial_at_a_time_and_a_good_one_closes_it(judged: Judged) -> None:
    """When its time is over it admits one request, and no other while that one runs; then the node is as good as new."""
    breaker = judged.open()
    assert breaker.admits

    trial = breaker.begin()

    assert trial
    assert (breaker.state, breaker.admits) == (BreakerState.HALF_OPEN, False)
    assert breaker.begin() == 0
    breaker.succeeded()
    breaker.end(trial)
    judged.fail(SETTINGS.breaker_failures - 1)
    assert breaker.state is BreakerState.CLOSED
    assert [state for state, _ in judged.changes] == ["open", "half_open", "closed"]


def test_a_failed_trial_doubles_the_wait_up_to_a_bound(judged: Judged) -> None:
    """A node that stays broken is asked ever less often, but is always asked again."""
    breaker, waited_s = judged.open(), []
    for _ in range(6):
        breaker.begin()
        judged.fail()
        began_s = judged.clock.now_s
        while not breaker.admits:
            judged.clock.now_s += 0.5
        waited_s.append(judged.clock.now_s - began_s)

    longest_s = SETTINGS.breaker_open_s * MAX_OPEN_FACTOR
    assert waited_s == [4.0, 8.0, 16.0, longest_s, longest_s, longest_s]
    assert breaker.openings == 7


def test_a_trial_without_a_verdict_makes_room_for_the_next(judged: Judged) -> None:
    """Its client left: neither a success nor a failure, and no reason to wait. No older request's end ends a trial."""
    breaker = judged.open()
    earlier = breaker.begin()
    breaker.end(earlier)
    assert (breaker.state, breaker.admits) == (BreakerState.OPEN, True)
    assert breaker.begin()

    breaker.end(0)
    breaker.end(earlier)

    assert breaker.state is BreakerState.HALF_OPEN


def test_what_failed_before_a_good_trial_does_not_count_after_it(judged: Judged) -> None:
    for _ in range(MIN_OUTCOMES // 2):
        judged.breaker.succeeded()
        judged.fail()
    judged.clock.now_s += SETTINGS.breaker_open_s
    judged.breaker.begin()
    judged.breaker.succeeded()

    judged.fail()

    assert (judged.breaker.state, judged.breaker.openings) == (BreakerState.CLOSED, 1)


def test_requests_from_before_it_opened_change_nothing(judged: Judged) -> None:
    """A success of a long stream does not close it; more failures neither count nor lengthen the wait."""
    judged.fail(SETTINGS.breaker_failures)

    judged.breaker.succeeded()
    judged.fail(10)
    judged.clock.now_s += SETTINGS.breaker_open_s

    assert judged.breaker.openings == 1
    assert judged.breaker.admits


def test_the_last_node_is_not_isolated(judged: Judged) -> None:
    """Where a bad node is better than none it stays in use; it opens when that changes."""
    judged.fail(20, may_open=False)
    assert judged.breaker.admits

    judged.fail()

    assert judged.breaker.state is BreakerState.OPEN


def test_another_process_behind_the_address_starts_afresh(judged: Judged) -> None:
    """A restart is the cure for most of what opened it."""
    judged.fail(SETTINGS.breaker_failures)

    judged.breaker.reset()

    assert judged.breaker.admits
    assert judged.changes[-1] == ("closed", "")
