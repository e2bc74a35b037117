import subprocess
from collections.abc import Callable, Iterator

import pytest

from tests.newcomer import machines

SERVER = 'trap "sleep 0.3; echo ended; exit" TERM; echo up; while :; do sleep 0.05; done'
STUBBORN = 'trap "" TERM; echo up; while :; do sleep 0.05; done'
Start = Callable[[str], subprocess.Popen[str]]


@pytest.fixture
def start() -> Iterator[Start]:
    """Runs a script as a background job does, which ignores Ctrl-C, below a shell that ends at the first signal."""
    started = []

    def run(script: str) -> subprocess.Popen[str]:
        command = ["bash", "-c", f"trap '' INT; ({script}) & wait"]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True))
        assert started[-1].stdout is not None
        assert started[-1].stdout.readline() == "up\n"
        return started[-1]

    yield run
    for process in started:
        assert process.stdout is not None
        process.stdout.close()


def test_what_runs_in_the_background_ends_by_itself(start: Start) -> None:
    """It does not heed Ctrl-C; and that its shell has ended is no reason to kill it."""
    process = start(SERVER)

    machines.stop(process)

    assert process.stdout is not None
    assert process.stdout.read() == "ended\n"


def test_what_does_not_end_is_killed(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machines, "STOP_S", 0.2)
    process = start(STUBBORN)

    with pytest.raises(subprocess.TimeoutExpired):
        machines.stop(process)

    assert process.stdout is not None
    assert process.stdout.read() == ""
