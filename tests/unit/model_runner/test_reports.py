"""What a worker tells of its token path."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import zmq

from baton.model_runner import reports
from baton.model_runner.audit import SyncAudit
from baton.model_runner.channel import AUDIT_VARIABLE, RUNNER_SOCKET, RUNTIME_DIR_VARIABLE
from baton.model_runner.reports import Reports
from baton.model_runner.tokens.transfer import HostTransfer


class Base:
    device = torch.device("cpu")
    stopped = False

    def init_device(self) -> None:
        """Nothing is to be done."""

    def execute_model(self, step: int) -> int:
        """Wait once, by accident."""
        self._audit.note(f"step {step}")  # type: ignore[attr-defined]
        return step

    def sample_tokens(self, step: int) -> int:
        return self.execute_model(step)

    def shutdown(self) -> None:
        self.stopped = True


class Worker(Reports, Base):
    vllm_config = SimpleNamespace(parallel_config=SimpleNamespace(data_parallel_index=0))
    model_runner: Any = SimpleNamespace(token_transfer=HostTransfer(), use_async_scheduling=True)


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Iterator[Worker]:
    monkeypatch.setattr(reports, "get_pp_group", lambda: SimpleNamespace(is_last_rank=True))
    monkeypatch.setattr(reports, "get_tp_group", lambda: SimpleNamespace(rank_in_group=0))
    monkeypatch.delenv(AUDIT_VARIABLE, raising=False)
    monkeypatch.delenv(RUNTIME_DIR_VARIABLE, raising=False)
    made = Worker()
    yield made
    made.shutdown()


def ask(path: Path) -> dict[str, Any]:
    with zmq.Context() as context, context.socket(zmq.REQ) as socket:
        socket.linger = 0
        socket.rcvtimeo = 10_000
        socket.connect(f"ipc://{path}")
        socket.send(b"snapshot")
        found: dict[str, Any] = socket.recv_json()  # type: ignore[assignment]
        return found


@pytest.mark.parametrize(("index", "folder"), [(0, ""), (2, "dp2")])
def test_the_node_is_answered(
    worker: Worker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, index: int, folder: str
) -> None:
    """From the start on, until the worker ends; by each data-parallel engine in its own folder."""
    monkeypatch.setenv(RUNTIME_DIR_VARIABLE, str(tmp_path))
    monkeypatch.setattr(worker.vllm_config.parallel_config, "data_parallel_index", index)
    worker.init_device()

    told = ask(tmp_path / folder / RUNNER_SOCKET)

    assert told["async_scheduling"] is True
    assert (told["tokens"]["slots"], told["tokens"]["submitted"]) == (0, 0)
    assert (told["runner"], told["syncs"]) == ("SimpleNamespace", {})


def test_a_rank_that_does_not_sample_is_silent(worker: Worker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last stage's first rank is the one to ask."""
    monkeypatch.setenv(RUNTIME_DIR_VARIABLE, str(tmp_path))
    monkeypatch.setattr(reports, "get_tp_group", lambda: SimpleNamespace(rank_in_group=1))

    worker.init_device()

    assert not (tmp_path / RUNNER_SOCKET).exists()


def test_a_path_that_cannot_be_bound_stops_no_worker(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only metrics are missing then."""
    monkeypatch.setenv(RUNTIME_DIR_VARIABLE, "/nowhere/" + "x" * 200)

    worker.init_device()

    assert worker.token_report()["tokens"]["submitted"] == 0


def test_steps_are_watched(worker: Worker) -> None:
    """Both halves of a step, whichever runner makes it."""
    worker.init_device()
    worker._audit = audit = SyncAudit()
    worker.model_runner = SimpleNamespace()

    worker.execute_model(1)
    worker.sample_tokens(2)
    audit.note("between steps")

    assert worker.token_report() == {
        "runner": "SimpleNamespace",
        "async_scheduling": False,
        "syncs": {"step 1": 1, "step 2": 1},
    }


def test_the_end_reaches_transfer_and_worker(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its thread ends with the worker, also when nothing was ever started, and callers that still wait for tokens are told."""
    ended: list[str] = []
    transfer = HostTransfer()
    monkeypatch.setattr(transfer, "stop", lambda: ended.append("transfer"))
    worker.model_runner = SimpleNamespace(token_transfer=transfer)

    worker.shutdown()

    assert ended == ["transfer"]
    assert worker.stopped
