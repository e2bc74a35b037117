"""Two pipeline stages in two processes, over real gloo: late receivers, neighbours that end, neighbours that hang."""

import json
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from baton.deploy.forkserver import Child, ForkServer
from tests.support.pipeline_stage import DONE, GO, READY, SENT, STEPS, How, wait_for_file

SHORT_S = 1.0  # a step's bound, where the neighbour does not come
LONG_S = 60.0

Start = Callable[[How, float], list[Child]]


@pytest.fixture
def start(forkserver: ForkServer, tmp_path: Path) -> Iterator[Start]:
    """Start both stages, and wait until they are connected."""
    stages: list[Child] = []

    def both(how: How, timeout_s: float) -> list[Child]:
        for rank in (0, 1):
            kwargs: dict[str, Any] = {"rank": rank, "folder": str(tmp_path), "how": how, "timeout_s": timeout_s}
            log = tmp_path / f"stage-{rank}.log"
            stages.append(forkserver.spawn("tests.support.pipeline_stage:stage", kwargs=kwargs, log=log))
        for rank in (0, 1):
            wait_for_file(tmp_path / f"{READY}-{rank}")
        return stages

    yield both
    for child in stages:
        child.kill()


def result(folder: Path, rank: int) -> Any:
    """What a stage says at its end."""
    return json.loads(wait_for_file(folder / f"{DONE}-{rank}").read_text())


def test_a_late_receiver_gets_every_step_as_it_was(start: Start, tmp_path: Path) -> None:
    """The sender writes its one output in every step (vLLM #54962); it is two messages ahead and no more."""
    start("async", LONG_S)

    wait_for_file(tmp_path / f"{SENT}-1")
    time.sleep(0.2)
    assert not (tmp_path / f"{SENT}-2").exists()

    (tmp_path / GO).touch()
    assert result(tmp_path, 1) == list(range(STEPS))


def test_synchronous_stages_carry_the_same_messages(start: Start, tmp_path: Path) -> None:
    """What the benchmark compares with: no step goes on before its message has been received."""
    start("sync", LONG_S)
    time.sleep(0.2)
    assert not (tmp_path / f"{SENT}-0").exists()

    (tmp_path / GO).touch()
    assert result(tmp_path, 1) == list(range(STEPS))


@pytest.mark.parametrize("how", ["async", "sync"])
@pytest.mark.parametrize(("rank", "other"), [(0, 1), (1, 0)])
def test_a_neighbour_that_is_killed_is_an_error(start: Start, tmp_path: Path, how: How, rank: int, other: int) -> None:
    """At once, and not when the time of a step is over."""
    stages = start(how, LONG_S)
    if how == "async" and rank == 0:
        wait_for_file(tmp_path / f"{SENT}-1")  # it waits for the first of two

    stages[other].kill()
    stages[other].wait(LONG_S)
    (tmp_path / GO).touch()

    said = result(tmp_path, rank)
    assert said.startswith("PipelineError: ")
    assert "pipeline stage failed" in said


@pytest.mark.parametrize(
    ("rank", "other", "expected"),
    [(0, 1, "Timed out waiting 1000ms for send operation"), (1, 0, "has sent nothing for 1 s")],
)
def test_a_neighbour_that_hangs_is_an_error_in_time(
    start: Start, tmp_path: Path, rank: int, other: int, expected: str
) -> None:
    """A stopped process keeps its connections open and answers nothing; the bound of a step ends the wait."""
    stages = start("async", SHORT_S)
    stages[other].send_signal(signal.SIGSTOP)
    if rank == 1:
        (tmp_path / GO).touch()

    assert expected in result(tmp_path, rank)
