"""An engine core that has lost a worker process ends; one that is idle, or ends by itself, is left alone."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from baton.kv_connector import connector
from baton.kv_connector.vllm_compat.worker_deaths import EXIT_WORKER_DIED

PATIENCE_S = 60.0
ENGINE_CORE = """
import multiprocessing, sys, time
from baton.kv_connector.vllm_compat.worker_deaths import watch_workers

own_name, name, worker_s, end_s, own_s = *sys.argv[1:3], *map(float, sys.argv[3:])
multiprocessing.current_process().name = own_name
fork = multiprocessing.get_context("fork")
worker = fork.Process(target=time.sleep, args=(worker_s,), name=name, daemon=True)
worker.start()
watch_workers(end_s)
def wait_for_the_other_host():
    time.sleep(own_s)
wait_for_the_other_host()
"""


def run_engine_core(
    name: str, *, worker_s: float, end_s: float, own_s: float, own_name: str = "EngineCore_DP0"
) -> "subprocess.CompletedProcess[str]":
    """Run one with a worker process that lives for `worker_s`; the core itself runs for `own_s`."""
    command = [sys.executable, "-c", ENGINE_CORE, own_name, name, str(worker_s), str(end_s), str(own_s)]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)


def test_an_engine_core_that_hangs_without_its_worker_is_ended_with_its_stacks() -> None:
    """VLLM's own bound for a step is 300 s."""
    done = run_engine_core("VllmWorker-0", worker_s=0.05, end_s=0.1, own_s=PATIENCE_S * 2)

    assert done.returncode == EXIT_WORKER_DIED
    assert "VllmWorker-0 ended" in done.stderr
    assert "wait_for_the_other_host" in done.stderr


@pytest.mark.parametrize(
    ("own_name", "name", "worker_s", "end_s"),
    [
        ("EngineCore_DP0", "VllmWorker-0", PATIENCE_S, 0.05),
        ("EngineCore_DP0", "VllmWorker-0", 0.05, PATIENCE_S),
        ("EngineCore_DP0", "Process-1", 0.05, 0.05),
        ("MainProcess", "VllmWorker-0", 0.05, 0.05),
    ],
    ids=["its workers live", "vLLM ends it in time", "another child ended", "the engine is in a program's own process"],
)
def test_other_processes_end_as_they_would(own_name: str, name: str, worker_s: float, end_s: float) -> None:
    """With their own status, however long they go on."""
    assert run_engine_core(name, worker_s=worker_s, end_s=end_s, own_s=0.5, own_name=own_name).returncode == 0


def test_a_scheduler_that_gets_its_block_pool_watches_the_workers(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The executor has started them by then."""
    watched: list[bool] = []
    monkeypatch.setattr(connector, "watch_workers", lambda: watched.append(True))
    monkeypatch.setattr(connector, "cache_manager_of", lambda _: None)
    monkeypatch.setattr(connector, "StatusServer", lambda *_: SimpleNamespace(start=lambda: None))
    made: Any = connector.BatonConnector.__new__(connector.BatonConnector)
    made._config = SimpleNamespace(engine_dir=tmp_path)
    made._scheduler = SimpleNamespace(bind_pool=lambda *_: None, snapshot=None, integrity=SimpleNamespace(ask=None))

    made.bind_gpu_block_pool(None)

    assert watched == [True]
