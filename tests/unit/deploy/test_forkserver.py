import json
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from baton.deploy.forkserver import Child, ForkServer, ForkServerError
from benchmarks.netns import target_in
from tests.support.processes import alive
from tests.support.waiting import eventually

TARGETS = "tests.unit.deploy.targets"


@pytest.fixture
def server() -> Iterator[ForkServer]:
    """A fork server whose import is instant."""
    with ForkServer(prepare=f"{TARGETS}:prepare") as started:
        yield started


def test_a_child_is_set_up_as_asked(server: ForkServer, tmp_path: Path) -> None:
    """The zygote's imports and environment with the changes asked for, a session, cores and temporary files of its own."""
    core = min(os.sched_getaffinity(0))
    path = tmp_path / "seen.json"
    env = {"COLOUR": "blue", "HOME": None, "TMPDIR": str(tmp_path)}
    child = server.spawn(f"{TARGETS}:report", kwargs={"path": str(path)}, env=env, cpus=[core])
    assert child.wait(10) == 0
    seen: dict[str, Any] = json.loads(path.read_text())

    assert seen["prepared"] == 1
    assert seen["session"] == seen["pid"]
    assert seen["environ"]["COLOUR"] == "blue"
    assert "HOME" not in seen["environ"]
    assert "PATH" in seen["environ"]
    assert seen["cpus"] == [core]
    assert seen["temporary"] == str(tmp_path)  # although the zygote has asked for its own, which Python remembers
    # With the control socket it would keep the zygote from noticing that its parent died.
    assert not [name for name in seen["descriptors"] if name.startswith("socket:")]


def test_the_targets_return_value_is_the_exit_status(server: ForkServer, tmp_path: Path) -> None:
    """The status is reported, and both output streams are in the log; an exception is 1, and its traceback is there too.

    Signals to an ended child do nothing: its process id may belong to another process by now.
    """
    log = tmp_path / "child.log"

    child = server.spawn(f"{TARGETS}:leave", kwargs={"code": 3}, log=log)

    assert child.wait(10) == 3
    child.terminate()
    child.kill()
    assert child.poll() == 3
    assert set(log.read_text().splitlines()) == {"to standard output", "to standard error"}
    assert server.spawn(f"{TARGETS}:raise_error", log=log).wait(10) == 1
    assert log.read_text().splitlines()[-1] == "RuntimeError: broken on purpose"


def test_terminate_and_kill_end_a_child(server: ForkServer, tmp_path: Path) -> None:
    """SIGTERM is reported as -15; a child that ignores it can be killed."""
    polite, _ = sleeper(server, tmp_path / "polite")
    stubborn, _ = sleeper(server, tmp_path / "stubborn", ignore_term=True)

    polite.terminate()
    stubborn.terminate()

    assert polite.wait(10) == -signal.SIGTERM
    with pytest.raises(subprocess.TimeoutExpired):
        stubborn.wait(0.2)
    stubborn.kill()
    assert stubborn.wait(10) == -signal.SIGKILL


def test_a_killed_child_takes_its_own_children_along(server: ForkServer, tmp_path: Path) -> None:
    """An engine process does not outlive its API process, however that died."""
    child, grandchild = sleeper(server, tmp_path / "pids")

    os.kill(child.pid, signal.SIGKILL)

    assert child.wait(10) == -signal.SIGKILL
    eventually(lambda: not alive(grandchild))


def test_a_signal_has_been_sent_when_the_call_returns(server: ForkServer, tmp_path: Path) -> None:
    """What a test does next does not run beside a process that is to be killed or stopped first."""
    child, _ = sleeper(server, tmp_path / "pids")
    assert server._process is not None
    server._process.send_signal(signal.SIGSTOP)
    call = threading.Thread(target=child.kill)
    try:
        call.start()
        call.join(0.3)
        assert call.is_alive()
    finally:
        server._process.send_signal(signal.SIGCONT)

    call.join(10)
    assert not call.is_alive()
    assert child.wait(10) == -signal.SIGKILL


def test_stop_leaves_nothing_behind(tmp_path: Path) -> None:
    """Children and grandchildren are dead when `stop` returns, and a second `stop` does no harm. Nothing is spawned before a start."""
    server = ForkServer(prepare="")
    with pytest.raises(ForkServerError):
        server.spawn(f"{TARGETS}:leave")
    server.start()
    child, grandchild = sleeper(server, tmp_path / "pids", ignore_term=True)

    server.stop()
    server.stop()

    assert not alive(child.pid)
    assert not alive(grandchild)
    assert child.poll() == -signal.SIGKILL


def test_sigterm_is_for_the_children_and_who_made_the_zygote(tmp_path: Path) -> None:
    """Sent to all processes of a service, as systemd does, it does not end those that wait for their own end."""
    with ForkServer(prepare="") as server:
        child, _ = sleeper(server, tmp_path / "pids")
        assert server._process is not None

        server._process.send_signal(signal.SIGTERM)

        assert server.spawn(f"{TARGETS}:leave", kwargs={"code": 3}).wait(10) == 3
        assert child.poll() is None
        child.terminate()
        assert child.wait(10) == -signal.SIGTERM


def test_sigterm_does_not_end_a_zygote_that_has_just_begun() -> None:
    """Its Python has not come to block it yet. Who makes the zygote heeds it all the same."""
    with ForkServer(prepare="") as server:
        assert server._process is not None

        server._process.send_signal(signal.SIGTERM)

        assert server.spawn(f"{TARGETS}:leave", kwargs={"code": 3}).wait(10) == 3
    assert signal.SIGTERM not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


def test_a_child_that_was_just_made_can_be_told_to_end(server: ForkServer) -> None:
    """Before it has left the zygote's role, too, which does not heed SIGTERM."""
    sleepers = []
    for _ in range(30):
        sleepers.append(server.spawn("os:execvp", kwargs={"file": "sleep", "args": ["sleep", "600"]}))
        sleepers[-1].terminate()

    assert [child.wait(10) for child in sleepers] == [-signal.SIGTERM] * 30


def test_children_die_with_the_zygote(tmp_path: Path) -> None:
    """A zygote that is killed is noticed, and its children are killed and reported."""
    with ForkServer(prepare="") as server:
        child, grandchild = sleeper(server, tmp_path / "pids")
        assert server._process is not None

        server._process.send_signal(signal.SIGKILL)

        assert child.wait(10) == -signal.SIGKILL
        eventually(lambda: not alive(child.pid) and not alive(grandchild))
        with pytest.raises(ForkServerError, match="has ended"):
            server.spawn(f"{TARGETS}:leave", kwargs={"code": 0})


def test_an_unknown_network_namespace_is_told_in_the_log(server: ForkServer, tmp_path: Path) -> None:
    """The child does not run in the wrong network instead."""
    log = tmp_path / "child.log"

    target, kwargs = target_in("no-such-network", f"{TARGETS}:leave", {"code": 0})

    child = server.spawn(target, kwargs=kwargs, log=log)

    assert child.wait(10) == 1
    assert "no-such-network" in log.read_text()


def sleeper(server: ForkServer, path: Path, *, ignore_term: bool = False) -> tuple[Child, int]:
    """Start a child that sleeps; return it and the pid of the process that it started itself."""
    child = server.spawn(f"{TARGETS}:sleep", kwargs={"path": str(path), "ignore_term": ignore_term})
    eventually(path.exists)
    pid, grandchild = map(int, path.read_text().split())
    assert pid == child.pid
    return child, grandchild
