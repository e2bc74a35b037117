"""Which ranks of a node are tied to which, and what becomes of one whose tie breaks."""

import logging
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch.distributed

from baton.model_runner import multi_host
from baton.model_runner.multi_host import EXIT_LOST, MultiHostWorker, connect_ranks

ADDRESS = ("10.0.0.1", 4711)
Engine = Callable[..., Any]


class FakeHub:
    """Notes whom it waits for."""

    def __init__(self, host: str, _secret: object) -> None:
        self.address = (host, ADDRESS[1])
        self.ranks: set[int] = set()
        self.closed = False

    def wait_for(self, ranks: set[int], _lost: object) -> None:
        self.ranks = ranks

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    """Makes vLLM's configuration of one host of several."""
    (tmp_path / "secret").write_text("0123456789abcdef")
    extra = {
        "runtime_dir": str(tmp_path),
        "secret_file": str(tmp_path / "secret"),
        "weights": "w",
        "transfer": {},
        "data_host": ADDRESS[0],
    }

    def make(host: int, hosts: int = 2, connector: str = "BatonConnector") -> Any:
        return SimpleNamespace(
            kv_transfer_config=SimpleNamespace(kv_connector=connector, kv_connector_extra_config=extra),
            parallel_config=SimpleNamespace(nnodes_within_dp=hosts, node_rank_within_dp=host, local_world_size=2),
        )

    return make


@pytest.fixture
def join(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Make this process one rank of four, on two hosts; rank 0 tells its address."""

    def gather(told: list[Any], mine: Any, group: object) -> None:
        told[0] = mine or ADDRESS

    monkeypatch.setattr(torch.distributed, "all_gather_object", gather)
    monkeypatch.setattr(multi_host, "RankMonitor", FakeHub)
    monkeypatch.setattr(multi_host, "RankLink", lambda address, _secret, index, _lost: (address, index))

    def as_rank(rank: int) -> None:
        group = SimpleNamespace(rank_in_group=rank, world_size=4, cpu_group=None)
        monkeypatch.setattr(multi_host, "get_inner_dp_world_group", lambda: group)

    return as_rank


def test_ranks_of_other_hosts_connect_to_the_first(engine: Engine, join: Callable[[int], None]) -> None:
    """At the address that it tells; it waits for them, and not for its neighbour, whom vLLM watches."""
    join(0)
    hub: Any = connect_ranks(engine(0))
    join(3)
    end: Any = connect_ranks(engine(1))
    join(1)

    assert hub.ranks == {2, 3}
    assert end == (ADDRESS, 3)
    assert connect_ranks(engine(0)) is None


def test_on_one_host_nothing_is_tied(engine: Engine) -> None:
    """Nor in a server that is no node, or has other connectors beside."""
    assert connect_ranks(engine(0, hosts=1)) is None
    assert connect_ranks(engine(0, connector="MultiConnector")) is None
    plain: Any = SimpleNamespace(parallel_config=SimpleNamespace(), kv_transfer_config=None)
    assert connect_ranks(plain) is None


def test_a_worker_takes_leave_before_it_stops(engine: Engine, join: Callable[[int], None]) -> None:
    """The others know then that all is well."""
    seen: list[object] = []

    class Base:
        def init_device(self) -> None:
            seen.append("groups are made")

        def shutdown(self) -> None:
            tied: Any = worker._tie
            seen.append(tied.closed)

    class Worker(MultiHostWorker, Base):
        vllm_config = engine(0)

    join(0)
    worker = Worker()
    worker.init_device()
    worker.shutdown()

    assert seen == ["groups are made", True]


@pytest.mark.parametrize(("farewell", "code", "words"), [(True, 0, "has been stopped"), (False, EXIT_LOST, "has gone")])
def test_the_process_ends_with_its_tie(
    farewell: bool, code: int, words: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """At once, since nothing orderly gets out of a collective call; the log says why."""
    codes: list[int] = []
    monkeypatch.setattr(os, "_exit", codes.append)
    monkeypatch.setattr(logging, "shutdown", lambda: None)

    multi_host._end("rank 1", farewell)

    assert codes == [code]
    assert words in caplog.text
