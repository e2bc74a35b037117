"""A prompt that D has no blocks for, early reservations for prompts behind it on P, and P full of it: vLLM's schedulers."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus

from baton.contracts.kv_transfer import Role, TransferParams
from baton.kv_connector.scheduler_side import decode
from baton.kv_connector.worker_side.decode import DecodeWorker
from baton.kv_connector.worker_side.prefill import PrefillWorker
from tests.support.ranks import BLOCK_TOKENS, BLOCKS, LAYERS, Ranks
from tests.support.schedulers import engine_config, request_of, scheduler_of

NEVER_S = 3600.0
PATIENCE_S = 30.0  # of the test; without the remedy D's time-out ends the circle after 120 s
BIG, ONE, TWO = (blocks * BLOCK_TOKENS - 2 for blocks in (11, 5, 3))  # tokens; a pool has 15 blocks


class Node:
    """One engine: vLLM's scheduler and our worker; its model samples a token and computes nothing."""

    def __init__(self, folder: Path, role: Role, worker: PrefillWorker | DecodeWorker) -> None:
        (folder / role).mkdir()
        length = BIG + 64
        config = engine_config(
            folder / role,
            "kv_producer" if role == "prefill" else "kv_consumer",
            max_model_len=length,
            max_num_batched_tokens=length,
        )
        self.scheduler: Any = scheduler_of(config, BLOCKS)
        self.worker = worker
        self.requests: dict[str, Request] = {}
        self._role: Role = role

    def add(self, name: str, tokens: int, peer: str = "") -> None:
        """A request has arrived; on D it wants two tokens."""
        transfer = TransferParams(transfer_id=name.encode().hex().rjust(32, "0"), role=self._role, peer=peer)
        made = request_of(name, tokens, transfer, max_tokens=1 if self._role == "prefill" else 2)
        self.requests[name] = made
        self.scheduler.add_request(made)

    def step(self) -> None:
        """Schedule, tell the worker, compute, and take in what came of it."""
        output = self.scheduler.schedule()
        told = output.kv_connector_metadata
        results: dict[str, Any] = {}
        if isinstance(self.worker, PrefillWorker):
            self.worker.begin_step(told.prefill)
            for layer in range(LAYERS):
                self.worker.layer_written(f"layer.{layer}")
            self.worker.end_step()
            results = {"finished_sending": self.worker.take_released()}
        else:
            self.worker.begin_step(told.decode)
            finished, failed = self.worker.take_results()
            report = self.worker.take_report()
            results = {"finished_recving": finished, "failed_recving": failed, "kv_connector_worker_meta": report}
        scheduled = list(output.num_scheduled_tokens)
        sampled = [[7] if self._is_computed(name) else [] for name in scheduled]
        self.scheduler.update_from_output(
            output,
            ModelRunnerOutput(
                req_ids=scheduled,
                req_id_to_index={name: i for i, name in enumerate(scheduled)},
                sampled_token_ids=sampled,
                kv_connector_output=KVConnectorOutput(**results),
            ),
        )

    def is_free(self) -> bool:
        return bool(self.scheduler.kv_cache_manager.block_pool.get_num_free_blocks() == BLOCKS - 1)

    def totals(self) -> dict[str, int]:
        """What our side of the scheduler has counted."""
        counted: dict[str, int] = self.scheduler.connector._scheduler.snapshot()["totals"]
        return counted

    def _is_computed(self, name: str) -> bool:
        request = self.requests[name]
        return bool(request.num_computed_tokens >= request.num_tokens)


@pytest.fixture
def nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[tuple[Node, Node]]:
    """P has the big prompt first, D has it last; `request.param`: how long D may stand still, s."""
    monkeypatch.setattr(decode, "STALLED_S", request.param)
    with Ranks(tmp_path) as ranks:
        p, d = Node(tmp_path, "prefill", ranks.prefill), Node(tmp_path, "decode", ranks.decode)
        for name, tokens in (("big", BIG), ("one", ONE), ("two", TWO)):
            p.add(name, tokens)
        for name, tokens in (("two", TWO), ("one", ONE), ("big", BIG)):
            d.add(name, tokens, ranks.prefill.address)
        yield p, d
        p.scheduler.connector.shutdown()
        d.scheduler.connector.shutdown()


def run_until(nodes: tuple[Node, Node], condition: Any) -> None:
    """Let both engines step."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "the circle has not opened"
        for node in nodes:
            node.step()
        time.sleep(0.002)


def statuses(node: Node) -> dict[str, RequestStatus]:
    return {name: request.status for name, request in node.requests.items()}


def is_circle(p: Node, d: Node) -> bool:
    waiting = {"one": RequestStatus.WAITING, "two": RequestStatus.WAITING}
    remote = dict.fromkeys(("one", "two"), RequestStatus.WAITING_FOR_REMOTE_KVS)
    return statuses(p) == {"big": RequestStatus.FINISHED_LENGTH_CAPPED, **waiting} and statuses(d) == {
        **remote,
        "big": RequestStatus.WAITING,
    }


@pytest.mark.parametrize("nodes", [NEVER_S], indirect=True)
def test_the_circle_closes(nodes: tuple[Node, Node]) -> None:
    """P has computed the big prompt and has no blocks for the small ones, whose reservations leave it none on D."""
    p, d = nodes
    run_until(nodes, lambda: is_circle(p, d))
    for _ in range(100):
        p.step()
        d.step()

    assert is_circle(p, d)
    assert d.totals()["recomputed"] == 0


@pytest.mark.parametrize("nodes", [0.2], indirect=True)
def test_early_reservations_make_room(nodes: tuple[Node, Node]) -> None:
    """No more than needed: D computes one prompt itself, receives the others, and every block comes back."""
    p, d = nodes
    run_until(nodes, lambda: all(request.is_finished() for request in d.requests.values()))
    run_until(nodes, lambda: p.is_free() and d.is_free())

    assert set(statuses(d).values()) == {RequestStatus.FINISHED_LENGTH_CAPPED}
    totals = d.totals()
    assert (totals["loaded"], totals["recomputed"]) == (2, 1)
    assert totals["integrity_findings"] == 0
