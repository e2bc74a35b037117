"""Waiting for posted messages."""

import pytest
from torch.distributed import Work

from baton.model_runner.pipeline.handles import Handle, PipelineError, wait_for


class Head:
    """vLLM's handle of a message's head, which takes no timeout."""

    def __init__(self, log: list[str]) -> None:
        self._log = log

    def is_completed(self) -> bool:
        return False

    def wait(self) -> None:
        self._log.append("head")


class Body(Work):
    """torch's handle of a tensor."""

    def __init__(self, log: list[str], error: str = "") -> None:
        super().__init__()
        self._log = log
        self._error = error

    def is_completed(self) -> bool:
        return False

    def wait(self, timeout: object = None) -> bool:
        self._log.append(f"tensor within {timeout}")
        if self._error:
            raise RuntimeError(self._error)
        return True


def test_tensors_are_waited_for_first_and_with_a_bound() -> None:
    """The head has no bound of its own; when the tensors have arrived, it has, too."""
    log: list[str] = []
    handles: list[Handle] = [Head(log), Body(log), Body(log)]

    wait_for(handles, 5, "sending")

    assert log == ["tensor within 0:00:05", "tensor within 0:00:05", "head"]


def test_a_wait_that_fails_says_what_failed() -> None:
    """And leaves the head alone, which would never arrive."""
    log: list[str] = []

    with pytest.raises(PipelineError, match=r"^sending failed: Timed out waiting 5000ms$"):
        wait_for([Head(log), Body(log, "Timed out waiting 5000ms")], 5, "sending")
    assert log == ["tensor within 0:00:05"]
