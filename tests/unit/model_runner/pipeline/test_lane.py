"""Which way the tensors of a stage travel, and a group of stages whose messages are waited for at once."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from baton.model_runner.pipeline.lane import VARIABLE, Counts, Transfer, _wait_at_once, chosen_transfer, install


class Handle:
    """Of a tensor that is under way."""

    def __init__(self, log: list[str], name: str) -> None:
        self._log, self._name = log, name

    def is_completed(self) -> bool:
        return False

    def wait(self) -> None:
        self._log.append(self._name)


def test_a_message_that_is_waited_for_at_once_is_whole() -> None:
    """What is left to do with its tensors, as gathering their slices, is done when they have come; nothing is left to vLLM."""
    log: list[str] = []
    tensors = {"hidden_states": torch.zeros(1)}
    lane = SimpleNamespace(
        isend_tensor_dict=lambda _tensors, **_: [Handle(log, "sent")],
        irecv_tensor_dict=lambda **_: (tensors, [Handle(log, "came")], [lambda: log.append("gathered")]),
    )
    group: Any = SimpleNamespace()
    _wait_at_once(group, lane, 1.0)

    assert group.isend_tensor_dict(tensors) == []
    assert group.irecv_tensor_dict() == (tensors, [], [])
    assert log == ["sent", "came", "gathered"]


@pytest.mark.parametrize(("stages", "transfer"), [(1, "async"), (1, "sync"), (2, "shm")])
def test_a_single_stage_and_one_that_is_told_to_keep_vllms_own_way(stages: int, transfer: Transfer) -> None:
    group = SimpleNamespace(world_size=stages)

    assert install(group, transfer, 1.0)() == Counts()
    assert vars(group) == {"world_size": stages}


@pytest.mark.parametrize(
    ("environ", "expected"),
    [({}, "async"), ({VARIABLE: ""}, "async"), ({VARIABLE: "sync"}, "sync"), ({VARIABLE: "shm"}, "shm")],
)
def test_asynchronous_unless_the_environment_says_otherwise(environ: dict[str, str], expected: str) -> None:
    """The user need not ask for it; the others are there to be compared with."""
    assert chosen_transfer(environ) == expected


def test_an_unknown_way_stops_the_worker_with_its_name() -> None:
    """A slip of the pen must not choose for the user."""
    with pytest.raises(ValueError, match=r"BATON_PIPELINE_TRANSFER is 'asynch'; it can be async, sync, shm"):
        chosen_transfer({VARIABLE: "asynch"})
