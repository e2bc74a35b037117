"""Messages are received ahead of the step that wants them, and waited for when they are first used."""

import queue
import threading
from typing import Any

import pytest
import torch
from vllm.v1.worker.gpu_worker import AsyncIntermediateTensors

from baton.model_runner.pipeline.handles import PipelineError, Posted
from baton.model_runner.pipeline.receive_ahead import ReceiveAhead

DEADLINE_S = 30.0


class Stage:
    """The stage before: what it says is received, in order; an exception is raised."""

    def __init__(self) -> None:
        self._said: queue.SimpleQueue[int | Exception] = queue.SimpleQueue()
        self.posted = threading.Semaphore(0)  # one for each receive that was posted
        self.threads: set[str] = set()

    def say(self, message: int | Exception) -> None:
        self._said.put(message)

    def post(self, **_: Any) -> Posted:
        self.threads.add(threading.current_thread().name)
        self.posted.release()
        message = self._said.get(timeout=DEADLINE_S)
        if isinstance(message, Exception):
            raise message
        return Posted({"hidden_states": torch.full((2,), message)}, [], [])


@pytest.fixture
def stage() -> Stage:
    return Stage()


@pytest.fixture
def receives(stage: Stage) -> ReceiveAhead:
    return ReceiveAhead(stage.post, timeout_s=DEADLINE_S)


def value_of(posted: Posted) -> float:
    """Use a message the way vLLM's model runner does."""
    tensors = AsyncIntermediateTensors(posted.tensors, posted.handles, posted.postprocess)
    return float(tensors["hidden_states"][0])


def test_asking_returns_before_anything_was_sent(stage: Stage, receives: ReceiveAhead) -> None:
    """A step prepares its inputs while the stage before still computes."""
    posted = receives.receive()

    assert posted.tensors == {}  # nothing is here, nothing was waited for

    stage.say(7)
    assert value_of(posted) == 7


def test_one_message_is_received_ahead_and_no_more(stage: Stage, receives: ReceiveAhead) -> None:
    """Its receive is posted while the step before it computes: that is what makes the sender send."""
    for message in range(5):
        stage.say(message)

    assert value_of(receives.receive()) == 0

    assert all(stage.posted.acquire(timeout=DEADLINE_S) for _ in range(2))  # step 0's, and one ahead
    assert not stage.posted.acquire(timeout=0.05)
    assert [value_of(receives.receive()) for _ in range(4)] == [1, 2, 3, 4]  # the order alone matches them to steps
    assert stage.posted.acquire(timeout=DEADLINE_S)
    assert stage.threads == {"pipeline-receive"}


def test_what_had_arrived_before_it_was_used_is_counted(stage: Stage, receives: ReceiveAhead) -> None:
    """The counter says how often nothing had to be waited for."""
    for message in range(3):
        stage.say(message)
    value_of(receives.receive())
    assert all(stage.posted.acquire(timeout=DEADLINE_S) for _ in range(2))
    second = receives.receive()
    assert stage.posted.acquire(timeout=DEADLINE_S)  # the third is being received, so the second is here

    before = receives.in_time
    value_of(second)

    assert (receives.taken, receives.in_time) == (2, before + 1)


def test_slices_are_put_together_by_the_thread_that_uses_them() -> None:
    """That is a collective operation of the tensor-parallel group, whose order all its ranks must share."""
    names: list[str] = []

    def post(**_: Any) -> Posted:
        tensors = {"hidden_states": torch.zeros(1)}

        def gather() -> None:
            names.append(threading.current_thread().name)
            tensors["hidden_states"] = torch.ones(2)

        return Posted(tensors, [], [gather])

    posted = ReceiveAhead(post, timeout_s=DEADLINE_S).receive()
    tensors = AsyncIntermediateTensors(posted.tensors, posted.handles, posted.postprocess)
    assert [handle.is_completed() for handle in posted.handles] == [False]

    assert torch.equal(tensors["hidden_states"], torch.ones(2))
    assert [handle.is_completed() for handle in posted.handles] == [True]
    assert names == [threading.current_thread().name]


def test_a_stage_that_is_gone_is_an_error_now_and_later(stage: Stage, receives: ReceiveAhead) -> None:
    """A later message would belong to another step."""
    stage.say(RuntimeError("Connection closed by peer"))

    for _ in range(2):
        with pytest.raises(PipelineError, match=r"previous pipeline stage failed: Connection closed by peer$"):
            value_of(receives.receive())


def test_a_stage_that_is_silent_is_an_error_in_time(stage: Stage) -> None:
    """The step waits for so long and no longer; what comes after that is not taken for another step's."""
    receives = ReceiveAhead(stage.post, timeout_s=0.05)

    with pytest.raises(PipelineError, match=r"has sent nothing for 0\.05 s$"):
        value_of(receives.receive())

    stage.say(0)
    stage.say(1)
    assert all(stage.posted.acquire(timeout=DEADLINE_S) for _ in range(2))
    with pytest.raises(PipelineError):
        value_of(receives.receive())


def test_another_way_of_receiving_is_refused(stage: Stage, receives: ReceiveAhead) -> None:
    """The message may have been received already, in the way that was asked for first."""
    receives.receive(all_gather_group="tp")

    with pytest.raises(PipelineError, match=r"all_gather_group"):
        receives.receive(all_gather_group=None)
    stage.say(0)
    stage.say(0)
