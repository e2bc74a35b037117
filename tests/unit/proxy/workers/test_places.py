"""When a worker that ended is followed by another."""

from baton.proxy.workers.supervisor import BACKOFF_S, MAX_BACKOFF_S, SETTLED_S, WorkerProcess


def test_a_worker_that_had_settled_is_followed_at_once() -> None:
    """It served for long; its port waits."""
    place = WorkerProcess(0, pid=1, started_s=100.0)

    assert place.ended(100.0 + SETTLED_S) == 0.0
    assert place.pid == 0


def test_one_that_dies_again_and_again_is_followed_ever_later() -> None:
    """Up to a limit; a worker that lives for long is followed at once again."""
    place = WorkerProcess(0, started_s=100.0)
    waits = [place.ended(101.0) for _ in range(8)]

    assert waits[:3] == [BACKOFF_S, 2 * BACKOFF_S, 4 * BACKOFF_S]
    assert waits[-1] == MAX_BACKOFF_S
    assert place.due_s == 101.0 + MAX_BACKOFF_S
    assert place.ended(200.0) == 0.0
    assert place.ended(100.5) == BACKOFF_S
