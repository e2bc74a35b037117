"""Two engines with both sides, each full of prompts that the other is to receive: vLLM's schedulers."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus

from baton.contracts.kv_transfer import Role, TransferParams
from baton.kv_connector.scheduler_side import decode
from baton.kv_connector.worker_side.sides import WorkerSides
from tests.support.ranks import BLOCK_TOKENS, BLOCKS, Ranks
from tests.support.schedulers import engine_config, request_of, scheduler_of

NEVER_S = 3600.0
PATIENCE_S = 30.0  # of the test; without the remedy D's time-out ends it after 120 s
TOKENS = 5 * BLOCK_TOKENS - 2  # of a prompt; a pool has 15 blocks
SETTINGS = {"role": "decode", "transfer": {"both_ways": True}}


class Node:
    """One engine: vLLM's scheduler and our worker's sides; its model samples a token and computes nothing."""

    def __init__(self, folder: Path, sides: WorkerSides) -> None:
        folder.mkdir()
        length = BLOCKS * BLOCK_TOKENS
        config = engine_config(
            folder, "kv_both", SETTINGS, max_model_len=length, max_num_batched_tokens=length, max_num_seqs=16
        )
        self.scheduler: Any = scheduler_of(config, BLOCKS)
        self.sides = sides
        self.received: dict[str, Request] = {}
        self._requests: dict[str, Request] = {}

    def add(self, role: Role, name: str, peer: str = "") -> None:
        transfer = TransferParams(transfer_id=name.encode().hex().rjust(32, "0"), role=role, peer=peer)
        made = request_of(f"{name}-{role}", TOKENS, transfer, prompt=name, max_tokens=1 if role == "prefill" else 2)
        self._requests[made.request_id] = made
        if role == "decode":
            self.received[name] = made
        self.scheduler.add_request(made)

    def step(self) -> None:
        """Schedule, tell the worker, compute, and take in what came of it."""
        output = self.scheduler.schedule()
        self.sides.void(output.kv_connector_metadata)
        self.sides.begin_step(output.kv_connector_metadata)
        self.sides.end_step()
        results = self.sides.take_results()
        scheduled = list(output.num_scheduled_tokens)
        computed = [self._requests[name] for name in scheduled]
        self.scheduler.update_from_output(
            output,
            ModelRunnerOutput(
                req_ids=scheduled,
                req_id_to_index={name: i for i, name in enumerate(scheduled)},
                sampled_token_ids=[[7] if each.num_computed_tokens >= each.num_tokens else [] for each in computed],
                kv_connector_output=KVConnectorOutput(
                    finished_sending=results.finished_sending,
                    finished_recving=results.finished_recving,
                    failed_recving=results.failed_recving,
                    kv_connector_worker_meta=self.sides.take_report(),
                ),
            ),
        )

    def free_blocks(self) -> int:
        return int(self.scheduler.kv_cache_manager.block_pool.get_num_free_blocks())

    def totals(self) -> dict[str, int]:
        counted: dict[str, int] = self.scheduler.connector._scheduler.snapshot()["totals"]
        return counted


@pytest.fixture
def nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[tuple[Node, Node]]:
    """Both hold three prompts for the other one, which is asked for them then; `request.param`: how long a node may stand still, s."""
    monkeypatch.setattr(decode, "STALLED_S", request.param)
    for name in ("there", "back"):
        (tmp_path / name).mkdir()
    with Ranks(tmp_path / "there") as there, Ranks(tmp_path / "back") as back:
        a = Node(tmp_path / "a", WorkerSides("decode", there.prefill, back.decode, pushes_layers=False))
        b = Node(tmp_path / "b", WorkerSides("decode", back.prefill, there.decode, pushes_layers=False))
        for source, names in ((a, "xyz"), (b, "uvw")):
            for name in names:
                source.add("prefill", name)
            for _ in range(3):
                source.step()
        for destination, names, ranks in ((b, "xyz", there), (a, "uvw", back)):
            for name in names:
                destination.add("decode", name, ranks.prefill.address)
        yield a, b
        a.scheduler.connector.shutdown()
        b.scheduler.connector.shutdown()


def run_until(nodes: tuple[Node, Node], condition: Any) -> None:
    """Let both engines step."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "the nodes stand still"
        for node in nodes:
            node.step()
        time.sleep(0.002)


@pytest.mark.parametrize("nodes", [NEVER_S], indirect=True)
def test_neither_has_room(nodes: tuple[Node, Node]) -> None:
    """All blocks of either are held for the other one, whose beats say that it wants them."""
    a, b = nodes
    begun = time.monotonic()
    while time.monotonic() - begun < 1.0:
        a.step()
        b.step()

    assert (a.free_blocks(), b.free_blocks()) == (0, 0)
    assert {each.status for node in nodes for each in node.received.values()} == {RequestStatus.WAITING}


@pytest.mark.parametrize("nodes", [0.2], indirect=True)
def test_some_are_given_up(nodes: tuple[Node, Node]) -> None:
    """Those are computed where they are wanted; the others arrive, and every block comes back."""
    a, b = nodes
    run_until(nodes, lambda: all(each.is_finished() for node in nodes for each in node.received.values()))
    run_until(nodes, lambda: a.free_blocks() == b.free_blocks() == BLOCKS - 1)

    loaded, recomputed = (sum(node.totals()[name] for node in nodes) for name in ("loaded", "recomputed"))
    assert loaded + recomputed == 6
    assert loaded >= 2
    assert [node.totals()["integrity_findings"] for node in nodes] == [0, 0]
