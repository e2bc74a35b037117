import asyncio
import math
import resource
import time

import pytest

from baton.loadtest.errors import RunError
from baton.loadtest.measures.record import TIMEOUT
from baton.loadtest.result import ClientCost
from baton.loadtest.run.environment import raise_limit
from baton.loadtest.run.loops import UNBOUNDED, CostMeter, Limits, Taken, line
from tests.unit.loadtest.records import failed, record


def test_a_busy_client_is_called_saturated() -> None:
    """One event loop can use one core."""

    def warning(cpu_s: float, wall_s: float, lag_p99_s: float) -> str:
        return ClientCost(cpu_s=cpu_s, wall_s=wall_s, lag_median_s=0, lag_p99_s=lag_p99_s, lag_max_s=0).warning()

    assert "used 90% of a core" in warning(9.0, 10.0, 0.0)
    assert "came 30 ms or more" in warning(1.0, 10.0, 0.03)
    assert warning(1.0, 10.0, 0.001) == warning(0.0, 0.0, 0.0) == ""


async def test_a_blocked_loop_shows_as_lag() -> None:
    """A fifth of a second in which no request could be served, some of which is CPU time."""
    async with CostMeter().measuring() as meter:
        await asyncio.sleep(0)
        until = time.perf_counter() + 0.2
        while time.perf_counter() < until:
            pass
        await asyncio.sleep(0.1)

    assert meter.cost is not None
    assert meter.cost.lag_max_s >= 0.1
    assert meter.cost.cpu_s > 0
    assert meter.cost.wall_s >= 0.3


def test_the_progress_line_counts() -> None:
    """Ended, in flight, in line, failed; a limit only where there is one."""
    taken = Taken(records=[record(), failed(TIMEOUT)], begun=5, in_line=4)
    bounded, unbounded = Limits(requests=9, seconds=60.0), Limits(requests=UNBOUNDED, seconds=math.inf)

    assert line("x", taken, bounded, 3.2) == "x: 2/9 requests, 3 in flight, 4 in line, 1 failed, 3/60 s"
    assert line("x", Taken(), unbounded, 1) == "x: 0 requests, 0 in flight, 0 failed, 1 s"


def test_more_connections_than_open_files_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the first request, with the way out."""
    limits: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 1000))
    monkeypatch.setattr(resource, "setrlimit", lambda _, both: limits.append(both))

    raise_limit(900)
    with pytest.raises(RunError, match="950 connections need 1014 open files, and this process may have 1000"):
        raise_limit(950)
    raise_limit(None)

    assert limits == [(1000, 1000)] * 2
