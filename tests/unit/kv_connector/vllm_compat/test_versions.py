"""A vLLM before 0.30 knows blocks whose load failed, not requests; one before 0.28 lacks a hook."""

from types import SimpleNamespace
from typing import Any

import pytest
from vllm.distributed.kv_transfer.kv_connector.v1 import base
from vllm.v1.request import RequestStatus

from baton.contracts.kv_transfer import Role
from baton.kv_connector.errors import ConnectorConfigError
from baton.kv_connector.vllm_compat import versions
from baton.kv_connector.vllm_compat.versions import FailedLoads, TransferResults, check_engine, restart


@pytest.fixture
def _old(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if vLLM were older than 0.30."""
    monkeypatch.setattr(versions, "KNOWS_FAILED_RECEIVES", False)


def without(*hooks: str) -> Any:
    """A base class for connectors as this vLLM has it, less some hooks."""
    names = {name: None for name in dir(base.KVConnectorBase_V1) if not name.startswith("__") and name not in hooks}
    return type("Base", (), names)


@pytest.mark.usefixtures("_old")
def test_a_failed_receive_is_told_by_its_first_block_and_once() -> None:
    loads = FailedLoads()
    loads.begin_step([("failed", 7)])
    loads.begin_step([("arrived", 9)])

    ended = loads.split(TransferResults(finished_recving={"failed", "arrived"}, failed_recving={"failed"}))

    assert ended == (set(), {"failed", "arrived"})
    assert [loads.take_blocks(), loads.take_blocks()] == [{7}, set()]


@pytest.mark.usefixtures("_old")
def test_a_request_that_was_never_reserved_for_is_not_taken_for_loaded() -> None:
    """Its failure could not be told, and its KV would be used (I4): that is a bug of ours, and it shows."""
    with pytest.raises(KeyError):
        FailedLoads().split(TransferResults(finished_recving={"r"}, failed_recving={"r"}))


def test_a_vllm_that_knows_failed_requests_is_told_no_blocks() -> None:
    """Block ids are not unique among several KV cache groups."""
    loads = FailedLoads()

    loads.begin_step([("r", 7)])

    assert loads._first_block == {}
    assert loads.take_blocks() == set()


@pytest.mark.parametrize(
    ("knows", "status", "tokens"),
    [(False, "WAITING_FOR_REMOTE_KVS", 0), (False, "RUNNING", 32), (True, "WAITING_FOR_REMOTE_KVS", 32)],
)
def test_a_request_whose_receive_failed_starts_from_nothing(
    monkeypatch: pytest.MonkeyPatch, knows: bool, status: str, tokens: int
) -> None:
    """Else vLLM would compute in the blocks that a peer may still write to (I3). Since 0.30 it sees to that by itself."""
    monkeypatch.setattr(versions, "KNOWS_FAILED_RECEIVES", knows)
    request: Any = SimpleNamespace(status=RequestStatus[status], num_computed_tokens=32)

    restart(request)

    assert request.num_computed_tokens == tokens


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_this_vllm_has_every_hook(role: Role) -> None:
    check_engine(role)


@pytest.mark.parametrize(
    ("role", "hook", "words"),
    [
        ("prefill", "handle_preemptions", "blocks could be sent that another request has taken"),
        ("prefill", "on_new_request", "could not be given up"),
        ("decode", "on_new_request", "could not be announced"),
        ("decode", "bind_gpu_block_pool", "could come back to the pool too early"),
        ("decode", "build_connector_worker_meta", "could come back to the pool too early"),
        ("decode", "has_pending_push_work", "would not come back while the node has no other work"),
    ],
)
def test_a_vllm_without_a_hook_that_an_invariant_needs_is_refused(role: Role, hook: str, words: str) -> None:
    """The sentence names the version, the role, the hook and what would go wrong."""
    with pytest.raises(ConnectorConfigError) as refused:
        check_engine(role, version="0.23.0", connector=without(hook))

    assert str(refused.value).startswith(f"vLLM 0.23.0 cannot run a {role} node: its connectors have no {hook}, ")
    assert words in str(refused.value)


def test_a_prefill_node_does_not_need_what_only_decode_nodes_use() -> None:
    """No `has_pending_push_work` in vLLM 0.23."""
    check_engine("prefill", version="0.23.0", connector=without("has_pending_push_work"))
