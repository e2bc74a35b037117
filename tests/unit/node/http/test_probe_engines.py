"""Children that do not answer: bounded, ended, and told for what they are."""

import asyncio
import signal
import sys
from asyncio.subprocess import Process
from typing import Any

import pytest

from baton.contracts.probe import MIB, Place, Push, Pushed, Receive
from baton.node.http import probe_engines
from baton.node.http.probe_engines import ProbeBusyError, ProbeEngines, ProbeError

PLACE = Place(host="127.0.0.1", protocol="tcp")
ANSWER = """import os; print('{"session":"%d","address":1,"size_bytes":1}' % os.getpid(), flush=True)"""
PUSH = Push(session="h:1", address=4096, size_bytes=MIB, idle_s=0)


@pytest.fixture(autouse=True)
def never(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every child hangs, and the limits on waiting are short."""
    monkeypatch.setattr(probe_engines, "COMMAND", (sys.executable, "-c", "import time; time.sleep(60)"))
    monkeypatch.setattr(probe_engines, "START_TIMEOUT_S", 0.1)
    monkeypatch.setattr(probe_engines, "PUSHING_S", 0.1)


@pytest.fixture
def children(monkeypatch: pytest.MonkeyPatch) -> list[Process]:
    """Every child that is started."""
    started, start = list[Process](), asyncio.create_subprocess_exec

    async def recorded(*command: Any, **how: Any) -> Process:
        started.append(await start(*command, **how))
        return started[-1]

    monkeypatch.setattr(asyncio, "create_subprocess_exec", recorded)
    return started


async def test_pushes_that_do_not_end_are_a_link_that_does_not_carry() -> None:
    """Which is wrong, and not merely a probe that could not be had; the next order is not kept waiting."""
    engines = ProbeEngines(PLACE)

    for _ in range(2):
        assert (await engines.push(PUSH)).problem == "the pushes did not end within 0.2 s"


def answers(monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    """Have every child run this, for which it has time."""
    monkeypatch.setattr(probe_engines, "COMMAND", (sys.executable, "-c", program))
    monkeypatch.setattr(probe_engines, "START_TIMEOUT_S", 60)


async def test_a_push_that_was_answered_leaves_no_process(
    monkeypatch: pytest.MonkeyPatch, children: list[Process]
) -> None:
    answers(monkeypatch, "print('{}', flush=True); import time; time.sleep(60)")

    assert await ProbeEngines(PLACE).push(PUSH) == Pushed()
    assert [child.returncode for child in children] == [-signal.SIGKILL]


async def test_a_receiver_that_does_not_come_up_says_so(children: list[Process]) -> None:
    """It takes none of the places for receivers, and its process has ended."""
    engines = ProbeEngines(PLACE)

    for _ in range(probe_engines.MAX_RECEIVERS + 1):
        with pytest.raises(ProbeError, match=r"no answer within 0\.1 s"):
            await engines.receive(Receive(seconds=1))

    assert [child.returncode for child in children] == [-signal.SIGKILL] * (probe_engines.MAX_RECEIVERS + 1)


async def test_receivers_have_a_number_and_are_taken_down(
    monkeypatch: pytest.MonkeyPatch, children: list[Process]
) -> None:
    """By their names, or all at the end."""
    answers(monkeypatch, f"{ANSWER}; import time; time.sleep(60)")
    engines, most = ProbeEngines(PLACE), probe_engines.MAX_RECEIVERS
    found = [await engines.receive(Receive(seconds=1)) for _ in range(most)]
    with pytest.raises(ProbeBusyError):
        await engines.receive(Receive(seconds=1))

    assert [await engines.release(found[0].session) for _ in range(2)] == [True, False]
    assert [child.returncode for child in children] == [-signal.SIGKILL, *[None] * (most - 1)]
    await engines.stop()
    assert [child.returncode for child in children] == [-signal.SIGKILL] * most
    assert not await engines.release(found[1].session)


async def test_a_receiver_that_has_ended_takes_no_place(
    monkeypatch: pytest.MonkeyPatch, children: list[Process]
) -> None:
    answers(monkeypatch, ANSWER)
    engines = ProbeEngines(PLACE)

    for _ in range(probe_engines.MAX_RECEIVERS + 1):
        await engines.receive(Receive(seconds=1))
        await children[-1].wait()


async def test_a_child_that_makes_no_sense_is_ended_and_its_last_words_are_told(
    monkeypatch: pytest.MonkeyPatch, children: list[Process]
) -> None:
    said = (
        "import sys, time; print('first\\nlast', file=sys.stderr, flush=True); print('?', flush=True); time.sleep(60)"
    )
    answers(monkeypatch, said)

    with pytest.raises(ProbeError, match=r"did not start: last$"):
        await ProbeEngines(PLACE).receive(Receive(seconds=1))
    assert children[0].returncode == -signal.SIGKILL
