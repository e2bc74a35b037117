"""What the supervisor does with processes, on a clock that the test moves; with real ones: `tests/integration/proxy`."""

import logging
import os
import select
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest

from baton.proxy.workers import supervisor as module
from baton.proxy.workers.supervisor import GRACE_S, Supervisor
from tests.support.clock import Clock

HANG_S = 40.0
STOP_S = 7.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(module, "time", Mock(monotonic=made))
    return made


@pytest.fixture
def kill(monkeypatch: pytest.MonkeyPatch) -> Mock:
    made = Mock()
    monkeypatch.setattr(os, "kill", made)
    return made


@pytest.fixture
def supervisor(clock: Clock) -> Iterator[Supervisor]:
    """Three slots; the first two have a worker that was heard just now."""
    made = Supervisor(Mock(), [[], [], []], Path("/nowhere"), stop_timeout_s=STOP_S, hang_s=HANG_S)
    for place in made._places:
        place.pid, place.heard_s = (11, 12, 0)[place.number], clock.now_s
    yield made
    made._woken.close()
    made._waker.close()


def test_a_worker_that_is_silent_for_too_long_is_killed_once(supervisor: Supervisor, clock: Clock, kill: Mock) -> None:
    """The others are not; the next look does not kill it again before it is known to be gone."""
    for _ in range(4):
        clock.now_s += HANG_S / 4
        supervisor._places[1].heard_s = clock.now_s
        assert not kill.called
        supervisor._kill_hanging()
    clock.now_s += HANG_S / 4
    supervisor._places[1].heard_s = clock.now_s
    supervisor._kill_hanging()

    kill.assert_called_once_with(11, signal.SIGKILL)


def test_a_supervisor_that_was_stopped_itself_kills_no_worker(supervisor: Supervisor, clock: Clock, kill: Mock) -> None:
    """What they said in that time was not heard: their time begins again."""
    clock.now_s += 10 * HANG_S
    supervisor._kill_hanging()
    clock.now_s += HANG_S / 4
    supervisor._kill_hanging()

    kill.assert_not_called()


@pytest.mark.parametrize(("due_s", "waits_s"), [(3.0, 3.0), (-5.0, 0.0), (HANG_S, HANG_S / 4)])
def test_the_supervisor_sleeps_until_a_worker_is_due_or_may_be_silent_for_too_long(
    supervisor: Supervisor, clock: Clock, monkeypatch: pytest.MonkeyPatch, due_s: float, waits_s: float
) -> None:
    """When a worker that is there would have been due does not count."""
    slept = Mock(return_value=[])
    monkeypatch.setattr(module, "_readable", slept)
    supervisor._places[0].due_s = clock.now_s - 1
    supervisor._places[2].due_s = clock.now_s + due_s
    supervisor._wait()

    slept.assert_called_once_with([supervisor._woken], waits_s)


def test_a_worker_that_beats_is_heard(supervisor: Supervisor, clock: Clock) -> None:
    """One that has gone is not, although its end can be read."""
    for place, says in zip(supervisor._places[:2], (b"..", b""), strict=True):
        place.pulse, theirs = socket.socketpair()
        theirs.send(says)
        theirs.close()
    before_s, clock.now_s = clock.now_s, clock.now_s + 5
    supervisor._wait()
    heard_s = [place.heard_s for place in supervisor._places]
    for place in supervisor._places[:2]:
        place.ended(clock.now_s)

    assert heard_s == [before_s + 5, before_s, before_s]


@pytest.mark.parametrize("stops", [False, True])
def test_a_worker_that_ended_is_told_unless_all_shall_end(
    supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, *, stops: bool
) -> None:
    """With its exit status, or the signal that killed it."""
    gone = {11: (11, signal.SIGKILL), 12: (0, 0)}
    monkeypatch.setattr(os, "waitpid", lambda pid, how: gone[pid] if how == os.WNOHANG else None)
    supervisor._told = [signal.SIGTERM] * stops
    supervisor._reap()

    assert [place.pid for place in supervisor._places] == [0, 12, 0]
    told = [vars(each) for each in caplog.records if each.levelno == logging.ERROR]
    assert [(each["worker"], each["worker_pid"], each["status"]) for each in told] == [(0, 11, -9)] * (not stops)


def test_workers_are_told_to_stop_and_once_more_if_the_supervisor_is(
    supervisor: Supervisor, clock: Clock, kill: Mock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits for them no longer than they may take; one that has gone already is no error."""
    supervisor._told = [signal.SIGTERM]
    kill.side_effect = [ProcessLookupError, *[None] * 3]
    waited_s: list[float] = []

    def sleep(_: object, wait_s: float) -> None:
        waited_s.append(wait_s)
        clock.now_s += 1.0 if len(waited_s) < 3 else wait_s
        if len(waited_s) == 2:
            supervisor._note(signal.SIGCHLD, None)
            supervisor._note(signal.SIGTERM, None)

    monkeypatch.setattr(module, "_readable", sleep)
    monkeypatch.setattr(os, "waitpid", lambda *_: (0, 0))
    supervisor._stop()

    assert [call.args for call in kill.call_args_list] == [
        (pid, number) for number in (signal.SIGTERM, signal.SIGINT) for pid in (11, 12)
    ]
    assert waited_s == [STOP_S + GRACE_S - passed_s for passed_s in range(3)]


@pytest.mark.parametrize(
    ("ends", "status"),
    [(None, 0), (SystemExit(), 0), (SystemExit(3), 3), (SystemExit("why"), 1), (ZeroDivisionError(), 1)],
)
def test_a_worker_ends_with_the_status_of_what_it_serves(
    supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch, ends: BaseException | None, status: int
) -> None:
    """In its own process, with its own place and its own sockets; those of the others are closed."""
    monkeypatch.setattr(
        module, "signal", Mock(wraps=signal, signal=Mock(), set_wakeup_fd=Mock(), pthread_sigmask=Mock())
    )
    monkeypatch.setattr(module, "_end_with", end_with := Mock())
    monkeypatch.setattr(os, "_exit", left := Mock())
    serve, sockets = Mock(side_effect=ends), [[Mock()] for _ in range(3)]
    supervisor._serve, supervisor._sockets = serve, sockets
    supervisor._places[1].starts = 4
    supervisor._be_worker(supervisor._places[1], 10, Mock(fileno=lambda: 99))

    left.assert_called_once_with(status)
    end_with.assert_called_once_with(10)
    (slot, own), _ = serve.call_args
    assert (slot.number, slot.workers, slot.directory, slot.starts, slot.pulse) == (1, 3, Path("/nowhere"), 4, 99)
    assert own is sockets[1]
    assert [each[0].close.called for each in sockets] == [True, False, True]
    assert (supervisor._woken.fileno(), supervisor._waker.fileno()) == (-1, -1)


def test_a_worker_whose_supervisor_is_gone_before_it_serves_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel tells it only of a death that is still to come."""
    monkeypatch.setattr(module, "ctypes", Mock())
    monkeypatch.setattr(os, "getppid", lambda: 10)
    module._end_with(10)

    with pytest.raises(SystemExit):
        module._end_with(9)


def test_what_can_be_read_is_returned_however_large_its_descriptor_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """And it is waited for in seconds."""
    polled = Mock()
    polled.poll.return_value = [(5000, select.POLLIN)]
    monkeypatch.setattr(select, "poll", lambda: polled)
    ends = [Mock(fileno=Mock(return_value=number)) for number in (4000, 5000)]

    assert module._readable(ends, 1.5) == [ends[1]]
    polled.poll.assert_called_once_with(1500.0)
    assert [call.args for call in polled.register.call_args_list] == [(4000, select.POLLIN), (5000, select.POLLIN)]
