"""The fence with a stand-in for vLLM's scheduler side; `tests/e2e/test_offloading.py` has the real one."""

from types import SimpleNamespace
from typing import Any

import pytest
from vllm.distributed.kv_transfer.kv_connector.v1 import KVConnectorRole
from vllm.distributed.kv_transfer.kv_connector.v1 import offloading_connector as upstream

from baton.kv_connector.errors import ConnectorConfigError
from baton.kv_connector.vllm_compat.fenced_offloading import ALLOCATED, OffloadingConnector


class Scheduler:
    """Notes what vLLM's scheduler side is told, and what it knew of the step by then."""

    def __init__(self) -> None:
        self._current_batch_allocated_block_ids: set[int] = {9}
        self.told: list[tuple[int, set[int]]] = []

    def update_state_after_alloc(self, _request: Any, _blocks: Any, tokens: int) -> None:
        self.told.append((tokens, set(self._current_batch_allocated_block_ids)))


def made(monkeypatch: pytest.MonkeyPatch, scheduler: object, role: KVConnectorRole) -> OffloadingConnector:
    """The connector around a stand-in."""

    def init(self: Any, *_: object) -> None:
        self.connector_scheduler = scheduler

    monkeypatch.setattr(upstream.OffloadingConnector, "__init__", init)
    nothing: Any = None
    return OffloadingConnector(nothing, role, nothing)


def blocks(*ids: int) -> Any:
    """Blocks of one group; 0 is the null block."""
    return SimpleNamespace(blocks=([SimpleNamespace(block_id=i, is_null=i == 0) for i in ids],))


@pytest.mark.parametrize("tokens", [0, 256])
def test_blocks_that_another_connector_fills_count_as_written(monkeypatch: pytest.MonkeyPatch, tokens: int) -> None:
    """With 0 tokens of its own vLLM's connector would not look at them."""
    scheduler = Scheduler()
    request: Any = SimpleNamespace(request_id="r")

    made(monkeypatch, scheduler, KVConnectorRole.SCHEDULER).update_state_after_alloc(request, blocks(4, 0, 5), tokens)

    assert scheduler.told == [(tokens, {4, 5, 9})]


def test_a_vllm_whose_connector_works_otherwise_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A renamed attribute must stop the node, not silently take the fence away."""
    with pytest.raises(ConnectorConfigError, match="does not say which blocks a step writes"):
        made(monkeypatch, SimpleNamespace(), KVConnectorRole.SCHEDULER)


def test_the_worker_side_needs_no_fence(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is told which copies to wait for."""
    made(monkeypatch, None, KVConnectorRole.WORKER)


def test_vllm_finds_its_metrics_by_the_classs_name() -> None:
    """The name is vLLM's, and so is the attribute that the fence rests on."""
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
    from vllm.distributed.kv_transfer.kv_connector.v1.offloading import scheduler

    assert KVConnectorFactory.get_connector_class_by_name(OffloadingConnector.__name__) in OffloadingConnector.__mro__
    assert ALLOCATED in scheduler.OffloadingConnectorScheduler.__init__.__code__.co_names
