import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock, PropertyMock

import pytest

from baton.deploy import stack as stacks
from baton.deploy.forkserver import ROOT, ForkServerError
from baton.deploy.launcher import (
    FIRST_DELAY_S,
    MAX_RESTARTS,
    WINDOW_S,
    Launcher,
    RestartBudget,
    Settings,
    StackFailedError,
    StopAskedError,
)
from tests.support.ports import free_port
from tests.support.processes import processes_naming
from tests.support.waiting import eventually


def test_delays_double_until_the_budget_is_spent() -> None:
    """A node that ends again and again is not started for ever; one that ends once a day is started each time."""
    budget, daily = RestartBudget(), RestartBudget()
    delays = [budget.next_delay_s(float(second)) for second in range(MAX_RESTARTS + 1)]

    assert delays == [*(FIRST_DELAY_S * 2**n for n in range(MAX_RESTARTS)), None]
    for day in range(20):
        assert (daily.next_delay_s(day * 2 * WINDOW_S), daily.used) == (FIRST_DELAY_S, 1)


PROGRAM = """
import json, signal, sys
from pathlib import Path
from baton.deploy.launcher import Launcher, Settings, StackFailedError
from baton.deploy.stack import Listener, Member, Stack

plan = json.loads(sys.argv[1])
for number in (signal.SIGHUP, signal.SIGINT):  # whatever the tests themselves were started with
    signal.signal(number, signal.SIG_IGN if number in plan["ignored"] else signal.SIG_DFL)

def member(name, ready_path, port, *flags):
    listener = Listener(host="127.0.0.1", port=port, flag="--port")
    module = "tests.unit.deploy.fake_server"
    argv = ("--port", str(port), *flags)
    return Member(name=name, module=module, argv=argv, listeners=(listener,), ready_path=ready_path)

folder = Path(plan["folder"])
nodes = tuple(member(name, "/health", port, *flags) for name, port, *flags in plan["nodes"])
stack = Stack(proxy=member("proxy", "/ready", *plan["proxy"]), nodes=nodes)
settings = Settings(runtime_dir=folder, log_dir=folder, start_timeout_s=plan["start_timeout_s"],
                    stop_timeout_s=plan["stop_timeout_s"], fork=plan["fork"], prepare=plan["prepare"], restart_nodes=plan["restart_nodes"])
try:
    Launcher(stack, settings, lambda line: print(line, flush=True)).run(lambda: print("ANNOUNCED", flush=True))
except StackFailedError as exc:
    print("FAILED", exc, flush=True)
    sys.exit(1)
"""


WAITER = """
import os
from baton.deploy.launcher import StopFlag, note_signals

asked, seen = StopFlag(), 0
with note_signals(asked):
    print("waiting", flush=True)
    while seen < 6000:
        seen += asked.wait(0.0001)
        asked.clear()
    os._exit(0)
"""


class Stack:
    """A launcher of fake servers in a process of its own, so that it can be sent real signals."""

    def __init__(self, folder: Path, **plan: Any) -> None:
        self.folder = folder
        plan = {
            "folder": str(folder),
            "fork": True,
            "prepare": "tests.unit.deploy.targets:prepare",
            "start_timeout_s": 20.0,
            "stop_timeout_s": 1.0,
            "restart_nodes": False,
            "ignored": [],
            "proxy": [free_port()],
            "nodes": [["prefill-0", free_port()], ["decode-0", free_port()]],
        } | plan
        self.output = folder / "output"
        with self.output.open("w") as output:
            command = [sys.executable, "-c", PROGRAM, json.dumps(plan)]
            marked = {**os.environ, "STACK_OF_TEST": str(folder)}  # every process of the stack inherits it
            self.process = subprocess.Popen(command, cwd=ROOT, env=marked, stdout=output, stderr=output)

    def wait_announced(self) -> None:
        eventually(lambda: "ANNOUNCED" in self.said() or self.process.poll() is not None)
        assert "ANNOUNCED" in self.said(), self.said()

    def said(self) -> str:
        return self.output.read_text()

    def kill(self, name: str) -> None:
        """Kill a member, whose pid stands in the line that announced its start."""
        line = next(line for line in self.said().splitlines() if line.startswith(f"{name} starting"))
        os.kill(int(line.partition("(pid ")[2].rstrip(")")), signal.SIGKILL)

    def left_behind(self) -> list[int]:
        return processes_naming(str(self.folder))

    def assert_ends(self, status: int) -> str:
        """Wait for the launcher, which leaves no process behind; return what it has said."""
        assert self.process.wait(20) == status, self.said()
        assert self.left_behind() == []
        return self.said()


Launch = Callable[..., Stack]


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Launch]:
    """Starts a stack; nothing of it outlives the test, not even a failed one."""
    stacks = []

    def start(**plan: Any) -> Stack:
        stacks.append(Stack(tmp_path, **plan))
        return stacks[-1]

    yield start
    for stack in stacks:
        for pid in stack.left_behind():
            os.kill(pid, signal.SIGKILL)
        stack.process.wait(10)


def test_what_runs_is_told_and_a_killed_proxy_ends_it(launch: Launch) -> None:
    """Each process is named when it starts and when it answers, the proxy after the nodes, once it uses them.

    No client reaches a node without the proxy, which is not started again.
    """
    used = '{"ready": true, "nodes": [{"state": "ready"}, {"state": "ready"}]}'
    stack = launch(restart_nodes=True, proxy=[free_port(), "--body", used])
    stack.wait_announced()

    stack.kill("proxy")

    said = stack.assert_ends(1)
    assert "FAILED proxy was killed by SIGKILL" in said
    ready = [line.split()[0] for line in said.splitlines() if " ready after " in line]
    assert (sorted(ready[:2]), ready[2:]) == (["decode-0", "prefill-0"], ["proxy"])
    assert "prefill-0 | fake server starting" in said


def test_a_closed_terminal_stops_everything_in_time(launch: Launch) -> None:
    """It ends the launcher with 0, although a child ignores its signal: it is killed then."""
    stack = launch(nodes=[["prefill-0", free_port()], ["decode-0", free_port(), "--ignore-term", "1"]])
    stack.wait_announced()

    began_s = time.monotonic()
    stack.process.send_signal(signal.SIGHUP)

    stack.assert_ends(0)
    assert time.monotonic() - began_s > 0.7


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGINT])
def test_a_signal_that_is_ignored_from_the_start_stays_so(launch: Launch, number: int) -> None:
    """`nohup` is for a stack that outlives its terminal, and Ctrl-C is not for what a script runs in the background."""
    stack = launch(ignored=[number], restart_nodes=True)
    stack.wait_announced()

    stack.process.send_signal(number)
    stack.kill("decode-0")

    eventually(lambda: "decode-0 ready again after" in stack.said() or stack.process.poll() is not None)
    assert "decode-0 ready again after" in stack.said()
    stack.process.terminate()
    stack.assert_ends(0)


def test_signals_in_any_number_do_not_hold_up_the_launcher() -> None:
    """Each may come while it begins or ends a wait: a lock that its handler wanted might be held by the wait."""
    with subprocess.Popen([sys.executable, "-c", WAITER], cwd=ROOT, stdout=subprocess.PIPE) as waiter:
        assert waiter.stdout is not None
        try:
            assert waiter.stdout.readline() == b"waiting\n"

            def tell() -> bool:
                waiter.send_signal(signal.SIGTERM)
                return waiter.poll() is not None

            eventually(tell, 60.0, every_s=0.0002)
            assert waiter.returncode == 0
        finally:
            waiter.kill()


@pytest.mark.parametrize("fork", [True, False])
def test_a_signal_to_all_processes_lets_them_end_what_they_have(launch: Launch, fork: bool) -> None:
    """A service manager may tell each process; those that only make processes and wait for them stay until the end."""
    nodes = [["prefill-0", free_port()], ["decode-0", free_port(), "--drain-s", "0.5"]]
    stack = launch(fork=fork, nodes=nodes, proxy=[free_port(), "--drain-s", "0.5"], stop_timeout_s=20.0)
    stack.wait_announced()

    for pid in sorted(stack.left_behind(), key=lambda pid: pid != stack.process.pid):
        os.kill(pid, signal.SIGTERM)

    stack.assert_ends(0)
    assert [(stack.folder / f"{name}.log").read_text().count("drained") for name in ("proxy", "decode-0")] == [1, 1]


@pytest.fixture
def launcher(tmp_path: Path) -> Launcher:
    """One that is not started."""
    at = stacks.Listener(host="127.0.0.1", port=9, flag="--port")
    proxy = stacks.Member(name="proxy", module="", argv=(), listeners=(at,), ready_path="")
    settings = Settings(runtime_dir=tmp_path, log_dir=tmp_path, start_timeout_s=1.0, stop_timeout_s=1.0)
    return Launcher(stacks.Stack(proxy=proxy, nodes=()), settings, lambda _: None)


def gone(launcher: Launcher, *, asked: bool) -> Any:
    """What a fork server says that has ended, by a signal which the launcher has noted too or by itself."""

    def fail(*_: object, **__: object) -> None:
        launcher._stop_asked.is_set = asked
        raise ForkServerError("gone")

    return fail


@pytest.mark.parametrize(("asked", "raised"), [(True, StopAskedError), (False, StackFailedError)])
def test_a_fork_server_that_ends_by_the_same_signal_is_no_failure(
    launcher: Launcher, asked: bool, raised: type[Exception]
) -> None:
    """While the proxy is started, and while vLLM is imported; one that ends by itself is."""
    importing = Mock(start=Mock())
    type(importing).ready = PropertyMock(side_effect=gone(launcher, asked=asked))

    for programs, zygote in ((Mock(spawn=gone(launcher, asked=asked)), Mock()), (Mock(), importing)):
        launcher._stop_asked.clear()
        launcher._logs, launcher._programs, launcher._zygote = Mock(), programs, zygote
        with pytest.raises(raised):
            launcher.start()


def test_an_end_by_the_same_signal_is_no_failure(launcher: Launcher) -> None:
    """A signal to all processes may end another one just before the launcher has noted its own."""

    def end() -> int:
        launcher._stop_asked.set()
        return -signal.SIGTERM

    launcher._children["proxy"] = Mock(poll=end)
    with pytest.raises(StopAskedError):
        launcher._tick()


def test_a_child_that_dies_is_named_with_its_status_and_last_words(launch: Launch) -> None:
    """The rest is stopped and the launcher fails: no node is started again, unless that was asked for."""
    said = launch(nodes=[["prefill-0", free_port()], ["decode-0", free_port(), "--die-after-s", "1.5"]]).assert_ends(1)

    assert "FAILED decode-0 ended with exit status 7" in said
    assert "    RuntimeError: out of luck" in said


@pytest.mark.parametrize("fork", [True, False])
def test_a_node_that_ends_while_serving_is_started_again(launch: Launch, fork: bool) -> None:
    """The reason is printed, the other processes go on, and the new process is announced once it is ready."""
    stack = launch(fork=fork, restart_nodes=True)
    stack.wait_announced()

    stack.kill("decode-0")
    eventually(lambda: "decode-0 ready again after" in stack.said())

    stack.process.terminate()
    said = stack.assert_ends(0)
    assert "decode-0 was killed by SIGKILL" in said
    assert "restart 1 of 5 within 300 s" in said
    assert [said.count(f"{name} starting") for name in ("proxy", "prefill-0", "decode-0")] == [1, 1, 2]


def test_a_second_signal_does_not_wait(launch: Launch) -> None:
    """A user who presses Ctrl-C twice is in a hurry."""
    stack = launch(proxy=[free_port(), "--ignore-term", "1"], stop_timeout_s=60.0)
    stack.wait_announced()

    stack.process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    stack.process.send_signal(signal.SIGINT)

    stack.assert_ends(0)


def test_a_signal_while_the_zygote_imports_stops_too(launch: Launch) -> None:
    """The user need not wait for the end of vLLM's import."""
    stack = launch(prepare="tests.unit.deploy.targets:prepare_for_ever")
    eventually(lambda: "proxy starting" in stack.said())

    stack.process.send_signal(signal.SIGINT)

    stack.assert_ends(0)


def test_nothing_survives_a_killed_launcher(launch: Launch) -> None:
    """The servers would otherwise go on holding their ports and memory."""
    stack = launch()
    stack.wait_announced()

    stack.process.kill()
    stack.process.wait(10)

    eventually(lambda: stack.left_behind() == [])


def test_a_node_that_is_never_ready_ends_the_start(launch: Launch) -> None:
    """The time to start is kept, and the message says who was late and how to give it longer."""
    nodes = [["prefill-0", free_port(), "--status", "503"], ["decode-0", free_port()]]
    said = launch(nodes=nodes, start_timeout_s=1.5).assert_ends(1)

    assert "FAILED prefill-0, proxy not ready after 1.5 s; give it longer with --start-timeout-s" in said


def test_an_import_that_fails_is_told(launch: Launch) -> None:
    """A broken installation shows its own error, not a time-out."""
    said = launch(prepare="tests.unit.deploy.targets:fail_to_prepare").assert_ends(1)

    assert "the import failed on purpose" in said
