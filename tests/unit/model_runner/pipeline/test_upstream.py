"""What vLLM's own worker does, on every device: where it is right, nothing of ours stands in for it."""

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from vllm.sequence import IntermediateTensors
from vllm.v1.worker import gpu_worker


class Log(list[str]):
    """What happened, in order; also a handle of a message."""

    def handle(self, name: str) -> SimpleNamespace:
        return SimpleNamespace(wait=lambda: self.append(f"wait for {name}"))


@pytest.fixture
def log() -> Log:
    return Log()


def worker(log: Log, monkeypatch: pytest.MonkeyPatch, *, first: bool) -> Any:
    """A worker of vLLM's, with a model and a pipeline group that tell what is asked of them."""

    def execute(_: object, received: Any) -> IntermediateTensors:
        log.append("prepare")
        if received is not None:
            received.tensors  # noqa: B018  # the first use
        log.append("forward")
        return IntermediateTensors({"hidden_states": torch.zeros(1)})

    def send(*_: object, **__: object) -> list[SimpleNamespace]:
        log.append("send")
        return [log.handle("the head"), log.handle("the sent tensor")]

    def receive(**_: object) -> tuple[dict[str, torch.Tensor], list[SimpleNamespace], list[Any]]:
        log.append("receive")
        return {}, [log.handle("the received tensor")], []

    group = SimpleNamespace(is_first_rank=first, is_last_rank=False, isend_tensor_dict=send, irecv_tensor_dict=receive)
    monkeypatch.setattr(gpu_worker, "get_pp_group", lambda: group)
    monkeypatch.setattr(gpu_worker, "get_tp_group", lambda: None)
    made = object.__new__(gpu_worker.Worker)
    made._pp_send_work = []
    made.use_v2_model_runner = False
    made.model_runner = SimpleNamespace(execute_model=execute)
    made.vllm_config = SimpleNamespace(parallel_config=SimpleNamespace(distributed_executor_backend="mp"))
    made.annotate_profile = lambda _: nullcontext()
    return made


def test_earlier_sends_are_waited_for_before_the_next_forward_pass(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph's outputs are the same memory in every step (vLLM #54962)."""
    made = worker(log, monkeypatch, first=True)

    for _ in range(2):
        made.execute_model(SimpleNamespace(total_num_scheduled_tokens=1))

    assert log.index("wait for the sent tensor") < [i for i, what in enumerate(log) if what == "forward"][1]


def test_what_is_received_is_waited_for_at_its_first_use(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """The step's inputs are prepared while the tensor is received."""
    worker(log, monkeypatch, first=False).execute_model(SimpleNamespace(total_num_scheduled_tokens=1))

    assert log[:4] == ["receive", "prepare", "wait for the received tensor", "forward"]
