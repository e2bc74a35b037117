"""From a clone to an answer, and from there to 2P2D: what is typed, what is waited for, and when it came."""

import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from baton.contracts.http import DISAGGREGATED, PATH_HEADER
from tests.newcomer.machines import Machine, stop
from tests.newcomer.readme import Commands

SERVING: Final = "Serving "
START: Final = "start"
ANSWER: Final = "first answer"
SERVE_S: Final = 900.0  # from `make serve` to "Serving"; the machine may be slow, the network too
SHORT_S: Final = 120.0
INTERFACES: Final = Path("/proc/net/dev")
MARKS: Final = {  # how a line begins → what begins with it
    "setup: installing system packages": "system libraries",
    "setup: installing torch": "torch",
    "setup: installing the pinned packages": "the other packages",
    "setup: done": START,
    SERVING: ANSWER,
}
Line = tuple[float, str]  # when, what


class JourneyError(Exception):
    """It does not go as the README says; the message says where it ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A part of the way."""

    name: str
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Journey:
    """One walk."""

    first: Sequence[Step]  # from an empty folder to an answer
    more: Sequence[Step]  # from the one command for 2P2D to an answer
    received_mib: int  # by this machine, all told, up to the first answer


def walk(machine: Machine, commands: Commands, say: Callable[[str], None]) -> Journey:
    """Walk once, in a home folder that has no clone yet; it is removed in the end.

    Raises:
        JourneyError: a command failed, took too long, or answered otherwise than it should.
    """
    run_line(machine, "rm -rf baton")  # not a step: an earlier journey may have left it
    before_bytes, began_s = _received_bytes(), time.monotonic()
    run_line(machine, f"git clone -q {machine.repository} baton")
    cloned = Step(name="clone", seconds=time.monotonic() - began_s)
    first = _leg(machine, commands.serve, commands.request, say)
    received_mib = (_received_bytes() - before_bytes) >> 20
    more = _leg(machine, commands.more, commands.more_request, say)
    return Journey(first=[cloned, *first], more=more, received_mib=received_mib)


def _leg(machine: Machine, serve: str, request: str, say: Callable[[str], None]) -> list[Step]:
    began_s = time.monotonic()
    with served(machine, serve, say) as lines:
        steps = parts(began_s, lines)
        began_s = time.monotonic()
        answer = run_line(machine, f"exec 2>/dev/null; cd baton && {request}")  # where curl draws a bar
        if problem := wrong(answer):
            raise JourneyError(f"{request}\n{problem}:\n{answer}")
        return [*steps, Step(name=ANSWER, seconds=time.monotonic() - began_s)]


def _received_bytes() -> int:
    """Of every interface but loopback; the names stand below two lines of headings."""
    lines = (line.partition(":") for line in INTERFACES.read_text().splitlines()[2:])
    return sum(int(counts.split()[0]) for name, _, counts in lines if name.strip() != "lo")


def parts(began_s: float, lines: Sequence[Line]) -> list[Step]:
    """Divide the time up to the line that says that it serves by the lines that say what is being done."""
    steps = []
    name, since_s = START, began_s
    for at_s, text in lines:
        begins = next((what for mark, what in MARKS.items() if text.startswith(mark)), None)
        if begins is not None:
            steps.append(Step(name=name, seconds=at_s - since_s))
            name, since_s = begins, at_s
    return steps


def wrong(answer: str) -> str:
    """Say what is wrong with what `curl -i` printed; nothing if it came over both nodes."""
    head, _, body = answer.replace("\r\n", "\n").partition("\n\n")
    status, *headers = head.lower().splitlines() or [""]
    if " 200" not in status:
        return f"the status is not 200 but {status!r}"
    if f"{PATH_HEADER}: {DISAGGREGATED}" not in headers:
        return f"{PATH_HEADER} is not {DISAGGREGATED}"
    return "" if '"choices"' in body else "there is no choice in it"


@contextmanager
def served(machine: Machine, line: str, say: Callable[[str], None]) -> Iterator[list[Line]]:
    """Type it, wait until it serves, and stop it in the end; yield what it has printed.

    Raises:
        JourneyError: it ended, or did not serve in time.
    """
    process = machine.start(f"cd baton && {line}")
    heard: queue.SimpleQueue[Line | None] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(process, heard), daemon=True).start()
    lines: list[Line] = []
    deadline_s = time.monotonic() + SERVE_S
    try:
        while not lines or SERVING not in lines[-1][1]:
            try:
                heard_line = heard.get(timeout=max(0.0, deadline_s - time.monotonic()))
            except queue.Empty:
                raise JourneyError(f"{SERVING!r} does not come in time; {_tail(lines)}") from None
            if heard_line is None:
                raise JourneyError(f"it ended before it said {SERVING!r}; {_tail(lines)}")
            say(f"  {heard_line[1]}")
            lines.append(heard_line)
        yield lines
    finally:
        stop(process)


def _listen(process: subprocess.Popen[str], heard: "queue.SimpleQueue[Line | None]") -> None:
    assert process.stdout is not None
    for line in process.stdout:
        heard.put((time.monotonic(), line.rstrip()))
    heard.put(None)


def _tail(lines: Sequence[Line]) -> str:
    return "its last lines:\n" + "\n".join(text for _, text in lines[-30:])


def run_line(machine: Machine, line: str) -> str:
    """Run a line to its end and return what it printed. Raises `JourneyError`: it failed, or took too long."""
    with machine.start(line) as process:
        try:
            said, _ = process.communicate(timeout=SHORT_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise JourneyError(f"no end after {SHORT_S:g} s: {line}") from None
    if process.returncode != 0:
        raise JourneyError(f"{line}\nended with {process.returncode}:\n{said}")
    return said
