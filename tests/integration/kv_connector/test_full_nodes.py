"""Nodes without room for what each waits for of the other: vLLM's schedulers with our connector and its workers."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import pytest
from vllm.v1.request import Request

from baton.contracts.kv_transfer import Role, TransferParams
from baton.kv_connector.scheduler_side import decode
from baton.kv_connector.worker_side.sides import WorkerSides
from tests.support.ranks import BLOCK_TOKENS, BLOCKS, Ranks
from tests.support.schedulers import end_step, engine_config, request_of, scheduler_of

PATIENCE_S = 30.0  # of the test; without the remedy D's time-out ends it after 120 s
BOTH_WAYS = {"role": "decode", "transfer": {"both_ways": True}}
POOL = BLOCKS - 1  # blocks, besides the null block


class Node:
    """One engine: vLLM's scheduler and our worker's sides; its model samples a token and computes nothing."""

    def __init__(
        self,
        folder: Path,
        kv_role: Literal["kv_producer", "kv_consumer", "kv_both"],
        sides: WorkerSides,
        settings: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        folder.mkdir()
        length = BLOCKS * BLOCK_TOKENS
        config = engine_config(
            folder, kv_role, settings, max_model_len=length, max_num_batched_tokens=length, max_num_seqs=16
        )
        self.scheduler: Any = scheduler_of(config, BLOCKS)
        self.received: list[Request] = []
        self._sides = sides
        self._requests: dict[str, Request] = {}

    def add(self, role: Role, name: str, blocks: int, peer: str = "") -> None:
        """A request has arrived; where it is received it wants two tokens."""
        transfer = TransferParams(transfer_id=name.encode().hex().rjust(32, "0"), role=role, peer=peer)
        tokens, answer = blocks * BLOCK_TOKENS - 2, 1 if role == "prefill" else 2
        made = request_of(f"{name}-{role}", tokens, transfer, prompt=name, max_tokens=answer)
        self._requests[made.request_id] = made
        if role == "decode":
            self.received.append(made)
        self.scheduler.add_request(made)

    def step(self) -> None:
        """Schedule, tell the worker, compute, and take in what came of it."""
        output = self.scheduler.schedule()
        self._sides.void(output.kv_connector_metadata)
        self._sides.begin_step(output.kv_connector_metadata)
        self._sides.end_step()
        results = self._sides.take_results()
        computed = [self._requests[name] for name in output.num_scheduled_tokens]
        end_step(
            self.scheduler,
            output,
            {each.request_id: [7] for each in computed if each.num_computed_tokens >= each.num_tokens},
            finished_sending=results.finished_sending,
            finished_recving=results.finished_recving,
            failed_recving=results.failed_recving,
            kv_connector_worker_meta=self._sides.take_report(),
        )

    def free_blocks(self) -> int:
        return int(self.scheduler.kv_cache_manager.block_pool.get_num_free_blocks())

    def totals(self) -> dict[str, int]:
        """What our side of the scheduler has counted."""
        counted: dict[str, int] = self.scheduler.connector._scheduler.snapshot()["totals"]
        return counted


@pytest.fixture
def running(monkeypatch: pytest.MonkeyPatch) -> Iterator[ExitStack]:
    """What a test starts; a decode node's prompts may stand still for a moment."""
    monkeypatch.setattr(decode, "STALLED_S", 0.2)
    with ExitStack() as stack:
        yield stack


def run_until(nodes: list[Node], condition: Callable[[], bool]) -> None:
    """Let both engines step."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "the nodes stand still"
        for node in nodes:
            node.step()
        time.sleep(0.002)


def run_to_the_end(nodes: list[Node]) -> tuple[int, int]:
    """All requests are answered and every block comes back; return how many prompts were received, and computed where they are wanted."""
    run_until(nodes, lambda: all(each.is_finished() for node in nodes for each in node.received))
    run_until(nodes, lambda: all(node.free_blocks() == POOL for node in nodes))
    totals = [node.totals() for node in nodes if node.received]
    assert [each["integrity_findings"] for each in totals] == [0] * len(totals)
    return sum(each["loaded"] for each in totals), sum(each["recomputed"] for each in totals)


def test_early_reservations_make_room(running: ExitStack, tmp_path: Path) -> None:
    """P has computed the big prompt and has no blocks for the small ones, whose reservations leave it none on D: a circle.

    D computes one prompt itself, no more than needed.
    """
    ranks = running.enter_context(Ranks(tmp_path))
    p = Node(tmp_path / "p", "kv_producer", WorkerSides("prefill", ranks.prefill, None, pushes_layers=True))
    d = Node(tmp_path / "d", "kv_consumer", WorkerSides("decode", None, ranks.decode, pushes_layers=False))
    for node in (p, d):
        running.callback(node.scheduler.connector.shutdown)
    prompts = [("big", 11), ("one", 5), ("two", 3)]
    for name, blocks in prompts:
        p.add("prefill", name, blocks)
    for name, blocks in reversed(prompts):
        d.add("decode", name, blocks, ranks.prefill.address)

    assert run_to_the_end([p, d]) == (2, 1)


def test_prompts_that_two_nodes_hold_for_each_other_are_given_up(running: ExitStack, tmp_path: Path) -> None:
    """All blocks of either are held for the other one, whose beats say that it wants them. Some are computed where they are wanted."""
    ranks = []
    for name in ("there", "back"):
        (tmp_path / name).mkdir()
        ranks.append(running.enter_context(Ranks(tmp_path / name)))
    there, back = ranks
    nodes = [
        Node(tmp_path / name, "kv_both", WorkerSides("decode", *sides, pushes_layers=False), BOTH_WAYS)
        for name, sides in (("a", (there.prefill, back.decode)), ("b", (back.prefill, there.decode)))
    ]
    for node, names in zip(nodes, ("xyz", "uvw"), strict=True):
        running.callback(node.scheduler.connector.shutdown)
        for name in names:
            node.add("prefill", name, 5)
        for _ in range(3):
            node.step()
        assert node.free_blocks() == 0
    for node, names, source in zip(nodes, ("uvw", "xyz"), (back, there), strict=True):
        for name in names:
            node.add("decode", name, 5, source.prefill.address)

    received, computed = run_to_the_end(nodes)

    assert received + computed == 6
    assert received >= 2
    assert computed >= 1
