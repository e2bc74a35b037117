"""The order of hooks on vLLM's V2 runner: its own code, on fakes, under its own worker's call and under ours; and whom a worker outlives."""

import os
import signal
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from vllm.distributed.kv_transfer import kv_transfer_state
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.worker.gpu import kv_connector as v2_connector
from vllm.v1.worker.gpu import model_runner as v2
from vllm.v1.worker.gpu.kv_connector import ActiveKVConnector
from vllm.v1.worker.gpu.model_runner import GPUModelRunner

from baton.kv_connector.vllm_compat.runner_order import VOIDS_FIRST
from baton.model_runner.choose import WorkerRefusedError
from baton.model_runner.worker import TransferWorker, VoidsFirst
from tests.support.processes import alive
from tests.support.waiting import eventually

MADE_ONCE = ("register_kv_caches", "set_host_xfer_buffer_ops")
REPORTED = (  # what vLLM collects at the end of a step, in whatever order
    "get_block_ids_with_load_errors",
    "get_kv_connector_stats",
    "get_kv_connector_kv_cache_events",
    "build_connector_worker_meta",
)


class Log(list[str]):
    """A connector, or a kernel, as far as it notes what was asked of it."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)

        def called(*_: Any, **__: Any) -> Any:
            if name not in (*MADE_ONCE, *REPORTED):
                self.append(name)
            return SimpleNamespace(finished_sending=set(), finished_recving=set(), failed_recving=set())

        return called


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Log:
    """What vLLM takes for its connector."""
    made = Log()
    monkeypatch.setattr(kv_transfer_state, "_KV_CONNECTOR_AGENT", made)
    monkeypatch.setattr(v2, "copy_kv_cache_blocks_inplace", lambda *_: made.append("copy blocks"))
    monkeypatch.setattr(v2_connector, "is_forward_context_available", lambda: True)
    monkeypatch.setattr(v2_connector, "get_forward_context", lambda: None)
    return made


class Runner:
    """As much of a V2 runner as a step without tokens needs; the steps that matter are vLLM's."""

    execute_model = GPUModelRunner.execute_model
    update_requests = GPUModelRunner.update_requests
    _merge_ec_connector_no_forward = staticmethod(lambda _, output: output)
    aux_output_connector = None
    kv_caches = kv_cache_config = SimpleNamespace(num_blocks=4)

    def __init__(self, log: Log) -> None:
        import numpy as np

        nothing = SimpleNamespace(apply_staged_writes=lambda: None)
        counts = np.zeros(1, dtype=np.int32)
        self.block_tables: Any = nothing
        self.req_states = SimpleNamespace(
            num_computed_tokens_np=counts, prefill_len=SimpleNamespace(np=counts), num_computed_prefill_tokens=counts
        )
        self.kv_block_zeroer = SimpleNamespace(zero_block_ids=lambda _: log.append("zero blocks"))
        self.kv_connector = ActiveKVConnector(SimpleNamespace(), {})
        self.update_pp_decode_requests = lambda: None
        self.finish_requests = self.free_states = self.add_requests = lambda _: None


class Theirs:
    use_v2_model_runner = True

    def __init__(self, log: Log) -> None:
        self.model_runner: Any = Runner(log)

    def execute_model(self, scheduler_output: Any) -> Any:
        return self.model_runner.execute_model(scheduler_output)


class Ours(VoidsFirst, Theirs):
    """The same with our call."""


def step() -> SchedulerOutput:
    """One that gives blocks away and computes nothing."""
    made = SchedulerOutput.make_empty()
    made.new_block_ids_to_zero = [1]
    made.kv_cache_block_copies = [(1, 2)]
    made.kv_connector_metadata = SimpleNamespace()
    return made


LATE = [
    *("zero blocks", "copy blocks", "handle_preemptions", "bind_connector_metadata"),
    *("finish_forward", "start_load_kv", "wait_for_save", "get_transfer_results", "clear_connector_metadata"),
]


def test_our_worker_tells_first(log: Log) -> None:
    """And vLLM goes on as ever."""
    Ours(log).execute_model(step())

    assert log == ["handle_preemptions", *LATE]


def test_on_v1_vllm_s_own_call_is_first_and_the_only_one(log: Log) -> None:
    """Nothing is called twice where it need not be."""
    worker = Ours(log)
    worker.use_v2_model_runner = False
    worker.model_runner = SimpleNamespace(execute_model=lambda _: log.append("vLLM's V1 runner"))

    worker.execute_model(step())

    assert log == ["vLLM's V1 runner"]


def test_warm_up_runs_without_a_connector(log: Log) -> None:
    """VLLM takes it away while it runs steps of its own, which have no metadata."""
    worker = Ours(log)
    worker.model_runner.kv_connector.set_disabled(True)
    warm_up = step()
    warm_up.kv_connector_metadata = None

    worker.execute_model(warm_up)

    assert log == ["zero blocks", "copy blocks"]


def test_the_connector_asks_for_what_the_worker_says() -> None:
    assert getattr(Ours, VOIDS_FIRST) is True
    assert not hasattr(Theirs, VOIDS_FIRST)


def test_a_worker_with_token_transfer_is_no_v2_runner_s(log: Log) -> None:
    """It would run without, under its name."""

    class Worker(TransferWorker, Theirs):
        pass

    with pytest.raises(WorkerRefusedError, match=r"Worker brings sampled tokens .* VLLM_USE_V2_MODEL_RUNNER=0"):
        Worker(log)

    Worker.use_v2_model_runner = False
    Worker(log)


PARENT = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", '''
import time
from baton.model_runner.worker import end_with_parent
end_with_parent()
print("tied", flush=True)
time.sleep(60)
'''], stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, flush=True)
time.sleep(60)
"""


def test_a_worker_dies_with_the_process_that_started_it() -> None:
    """An engine that outlives a killed API server would keep its ports and look alive to its peers."""
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    with parent.stdout:
        worker = int(parent.stdout.readline())
    assert alive(worker)

    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()

    eventually(lambda: not alive(worker))
