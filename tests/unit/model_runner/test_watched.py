"""A worker's steps under the watchdog, on a device that never comes: V1's order of calls, and V2's."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from vllm.v1.outputs import AsyncModelRunnerOutput

from baton.model_runner import watched
from baton.model_runner.channel import STEP_TIMEOUT_VARIABLE
from baton.model_runner.watchdog import Watchdog
from baton.model_runner.watched import Watched, step_timeout_s
from tests.support.fake_device import DeviceError, FakeDevice, Run
from tests.support.late_tensor import LateWorld
from tests.unit.model_runner.test_watchdog import Ends

PATIENCE_S = 60.0


class Base:
    """A worker of vLLM's, on a device that runs nothing unless it is told to."""

    def __init__(self) -> None:
        self.world = LateWorld(FakeDevice(1, Run.ON_ADVANCE))
        self.waits_in = ""  # the call that waits for the device
        self.stopped = False

    def compile_or_warm_up_model(self) -> str:
        self.execute_model(0)
        return "times"

    def execute_model(self, _step: int) -> Any:
        return self._wait("execute_model")

    def sample_tokens(self, _grammar: Any) -> Any:
        self._wait("sample_tokens")
        return self.world.v2_output([[7]], [1])

    def take_draft_token_ids(self) -> Any:
        return self._wait("take_draft_token_ids")

    def execute_dummy_batch(self) -> None:
        self._wait("execute_dummy_batch")

    def shutdown(self) -> None:
        self.stopped = True

    def _wait(self, call: str) -> None:
        if call == self.waits_in:
            self.world.compute.synchronize()


class Worker(Watched, Base):
    """One whose steps are watched."""


@pytest.fixture
def ended() -> Ends:
    """In the place of the end of the process."""
    return Ends()


@pytest.fixture
def worker(ended: Ends, monkeypatch: pytest.MonkeyPatch) -> Iterator[Worker]:
    monkeypatch.setattr(watched, "Watchdog", lambda bound_s: Watchdog(bound_s, ended))
    monkeypatch.setenv(STEP_TIMEOUT_VARIABLE, "0.1")
    made = Worker()
    assert made.compile_or_warm_up_model() == "times"
    yield made
    made.world.device.close()
    made.shutdown()


@pytest.mark.parametrize(
    ("call", "arguments"),
    [
        ("execute_model", (1,)),
        ("sample_tokens", (None,)),
        ("take_draft_token_ids", ()),
        ("execute_dummy_batch", ()),
        ("get_output", ()),  # in V2's order of calls, another thread waits for vLLM's own output
    ],
)
def test_late_device_hangs_a_call(worker: Worker, ended: Ends, call: str, arguments: tuple[Any, ...]) -> None:
    """As V1's `_to_list` does: whichever call waits, the process is ended, and says which."""
    worker.waits_in = call
    holder = worker.sample_tokens(None) if call == "get_output" else worker

    def until_lost() -> None:
        with pytest.raises(DeviceError):
            getattr(holder, call)(*arguments)

    thread = threading.Thread(target=until_lost)
    thread.start()
    told = ended.told.wait(PATIENCE_S)
    worker.world.device.close()
    thread.join(PATIENCE_S)

    assert told
    assert [overdue.call.name for overdue in ended.found] == [call]


def test_late_device_that_comes_is_no_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    """The output is vLLM's own; one that is dropped unasked, as other ranks' are, is not waited for."""
    watchdog = Watchdog(PATIENCE_S)
    monkeypatch.setattr(watched, "Watchdog", lambda _bound_s: watchdog)
    worker = Worker()
    worker.compile_or_warm_up_model()

    worker.sample_tokens(None)
    output = worker.sample_tokens(None)
    worker.world.device.advance(100)

    assert isinstance(output, AsyncModelRunnerOutput)
    assert output.model_runner_output.req_ids == ["a"]  # what else vLLM asks of it
    assert output.get_output().sampled_token_ids == [[7]]
    assert watchdog.calls == {}
    worker.world.device.close()
    worker.shutdown()


def test_warm_up_is_not_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long it takes, and though it runs steps: there is no watchdog yet."""
    at_the_step: list[Watchdog | None] = []
    worker = Worker()
    monkeypatch.setattr(worker, "_wait", lambda _call: at_the_step.append(worker._watchdog))

    worker.compile_or_warm_up_model()
    worker.execute_model(1)
    worker.shutdown()

    assert [watchdog is None for watchdog in at_the_step] == [True, False]
    assert worker.stopped


def test_a_server_that_is_no_node_has_the_engines_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """That is what vLLM bounds a step by; a node says its own."""
    monkeypatch.setenv("VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS", "77")

    assert step_timeout_s({}) == 77.0
    assert step_timeout_s({STEP_TIMEOUT_VARIABLE: "4.5"}) == 4.5
