"""The step watchdog: what counts as hanging, and what it does then."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from baton.model_runner.watchdog import EXIT_OVERDUE, Ages, Call, Overdue, Watchdog
from tests.support.fake_device import DeviceError

PATIENCE_S = 60.0  # of the tests: a loaded machine may be late
RUN = Call("execute_model", 1)


class Ends:
    """Notes what the watchdog would have ended the process for."""

    def __init__(self) -> None:
        self.found: list[Overdue] = []
        self.told = threading.Event()

    def __call__(self, overdue: Overdue, _bound_s: float) -> None:
        self.found.append(overdue)
        self.told.set()


@pytest.fixture
def ends() -> Ends:
    return Ends()


@pytest.fixture
def watchdog(ends: Ends) -> Iterator[Watchdog]:
    """One with a short bound, looking."""
    made = Watchdog(0.1, ends)
    made.start()
    yield made
    made.stop()


def test_a_call_that_is_seen_for_the_bound_is_overdue() -> None:
    """Counted from the first look that saw it; not a tick earlier."""
    ages = Ages(bound_s=1.0, tick_s=0.25)

    seen = [ages.find_overdue({0: RUN}, now_s) for now_s in (7.0, 7.25, 7.5, 7.75, 8.0)]

    assert seen == [None, None, None, None, Overdue(RUN, 1.0)]


def test_many_short_calls_are_not_one_long_one() -> None:
    """Each has a number of its own: a busy worker is never overdue."""
    ages = Ages(bound_s=1.0, tick_s=0.25)

    assert [ages.find_overdue({step: RUN}, step * 0.25) for step in range(40)] == [None] * 40


def test_time_in_which_nothing_looked_hardly_counts() -> None:
    """SIGSTOP, a machine that sleeps: the process goes on where it was, and is not ended for it."""
    ages = Ages(bound_s=1.0, tick_s=0.25)
    ages.find_overdue({0: RUN}, 0.0)

    assert ages.find_overdue({0: RUN}, 3600.0) is None  # stopped for an hour, counted as two ticks
    assert ages.find_overdue({0: RUN}, 3600.25) is None
    assert ages.find_overdue({0: RUN}, 3600.5) == Overdue(RUN, 1.0)  # it does hang


def test_the_longest_of_several_is_named() -> None:
    """The output of one step and the model of the next are under way at once."""
    ages, output = Ages(bound_s=0.5, tick_s=0.25), Call("get_output", 2)
    ages.find_overdue({0: output}, 0.0)
    ages.find_overdue({0: output, 1: RUN}, 0.25)

    assert ages.find_overdue({0: output, 1: RUN}, 0.5) == Overdue(output, 0.5)


def test_a_call_that_hangs_is_told_once(watchdog: Watchdog, ends: Ends) -> None:
    """By its name, and the thread that is in it."""
    returns = threading.Event()

    def hang() -> None:
        with watchdog.call("get_output"):
            returns.wait(PATIENCE_S)

    thread = threading.Thread(target=hang)
    thread.start()
    told = ends.told.wait(PATIENCE_S)
    returns.set()
    thread.join()

    assert told
    assert [overdue.call for overdue in ends.found] == [Call("get_output", thread.ident or 0)]


def test_calls_that_end_are_forgotten(ends: Ends) -> None:
    watchdog = Watchdog(0.1, ends)

    with watchdog.call("execute_model"):
        assert [call.name for call in watchdog.calls.values()] == ["execute_model"]
    with pytest.raises(DeviceError), watchdog.call("get_output"):
        raise DeviceError

    assert watchdog.calls == {}


def test_the_end_says_what_hangs_and_shows_it() -> None:
    """A process of its own: the sentence, the stack with the hanging frame, and the status."""
    program = (
        "import time\n"
        "from baton.model_runner.watchdog import Watchdog\n"
        "def hang_in_the_model():\n"
        "    time.sleep(600)\n"
        "watchdog = Watchdog(0.1)\n"
        "watchdog.start()\n"
        "with watchdog.call('sample_tokens'):\n"
        "    hang_in_the_model()\n"
    )

    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )

    assert done.returncode == EXIT_OVERDUE
    assert "sample_tokens has not returned for" in done.stderr
    assert "hang_in_the_model" in done.stderr


def test_a_log_that_is_not_read_delays_no_end() -> None:
    """With stderr full, the sentence can never be written: the kernel's timer ends the process."""
    reader, writer = os.pipe()
    program = (
        "import os, time\n"
        "from baton.model_runner import watchdog\n"
        "watchdog.LAST_RESORT_S = 0.1\n"
        "os.set_blocking(2, False)\n"
        "try:\n"
        "    while True: os.write(2, b'x' * 4096)\n"
        "except BlockingIOError:\n"
        "    os.set_blocking(2, True)\n"
        "watched = watchdog.Watchdog(0.1)\n"
        "watched.start()\n"
        "with watched.call('execute_model'):\n"
        "    time.sleep(600)\n"
    )
    try:
        done = subprocess.run([sys.executable, "-c", program], stderr=writer, timeout=PATIENCE_S, check=False)
    finally:
        os.close(reader)
        os.close(writer)

    assert done.returncode == -signal.SIGALRM
