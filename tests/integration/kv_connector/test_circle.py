"""A prompt that D has no blocks for, early reservations for prompts behind it on P, and P full of it: vLLM's schedulers."""

import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from vllm.config import KVTransferConfig
from vllm.engine.arg_utils import EngineArgs
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

from baton.contracts.kv_transfer import Role, TransferParams, sign
from baton.contracts.secret import read_secret
from baton.deploy.embedded_model import WEIGHTS
from baton.kv_connector.scheduler_side import decode
from baton.kv_connector.worker_side.decode import DecodeWorker
from baton.kv_connector.worker_side.prefill import PrefillWorker
from tests.support.ranks import BLOCK_TOKENS, BLOCKS, LAYERS, Ranks

NEVER_S = 3600.0
PATIENCE_S = 30.0  # of the test; without the remedy D's time-out ends the circle after 120 s
BIG, ONE, TWO = (blocks * BLOCK_TOKENS - 2 for blocks in (11, 5, 3))  # tokens; a pool has 15 blocks


def make_scheduler(folder: Path, role: Role) -> Any:
    """Make vLLM's scheduler of a node, with our connector in it."""
    runtime = folder / role
    runtime.mkdir()
    transfer = KVTransferConfig(
        kv_connector="BatonConnector",
        kv_connector_module_path="baton.kv_connector.connector",
        kv_role="kv_producer" if role == "prefill" else "kv_consumer",
        kv_load_failure_policy="recompute",
        kv_connector_extra_config={
            "runtime_dir": str(runtime),
            "secret_file": str(folder / "secret"),
            "weights": "w",
            "transfer": {},
        },
    )
    config = EngineArgs(
        model=str(WEIGHTS),
        enforce_eager=True,
        block_size=BLOCK_TOKENS,
        max_model_len=BIG + 64,
        max_num_batched_tokens=BIG + 64,
        max_num_seqs=8,
        skip_tokenizer_init=True,
        kv_transfer_config=transfer,
    ).create_engine_config()
    config.cache_config.num_gpu_blocks = BLOCKS
    spec = FullAttentionSpec(block_size=BLOCK_TOKENS, num_kv_heads=1, head_size=2, dtype=torch.float32)
    cache = KVCacheConfig(BLOCKS, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer.0"], spec)])
    return Scheduler(config, cache, StructuredOutputManager(config), block_size=BLOCK_TOKENS, log_stats=False)


class Node:
    """One engine: vLLM's scheduler and our worker; its model samples a token and computes nothing."""

    def __init__(self, folder: Path, role: Role, worker: PrefillWorker | DecodeWorker) -> None:
        self.scheduler = make_scheduler(folder, role)
        self.worker = worker
        self.requests: dict[str, Request] = {}
        self._secret = read_secret(folder / "secret")
        self._role: Role = role
        self._hasher = get_request_block_hasher(BLOCK_TOKENS, sha256)

    def add(self, name: str, tokens: int, peer: str = "") -> None:
        """A request has arrived; on D it wants two tokens."""
        first = ord(name[0]) * 1000
        params = SamplingParams(max_tokens=1 if self._role == "prefill" else 2, ignore_eos=True)
        made = Request(name, [first + i for i in range(tokens)], params, None, block_hasher=self._hasher)
        transfer = TransferParams(transfer_id=name.encode().hex().rjust(32, "0"), role=self._role, peer=peer)
        made.kv_transfer_params = sign(transfer, self._secret)
        self.requests[name] = made
        self.scheduler.add_request(made)

    def step(self) -> None:
        """Schedule, tell the worker, compute, and take in what came of it."""
        output = self.scheduler.schedule()
        told = output.kv_connector_metadata
        results: dict[str, Any] = {}
        if isinstance(self.worker, PrefillWorker):
            self.worker.begin_step(told)
            for layer in range(LAYERS):
                self.worker.layer_written(f"layer.{layer}")
            self.worker.end_step()
            results = {"finished_sending": self.worker.take_released()}
        else:
            self.worker.begin_step(told)
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
        """Whether every block is back in the pool."""
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
    (tmp_path / "secret").write_text(secrets.token_urlsafe(32))
    (tmp_path / "secret").chmod(0o600)
    init_none_hash(sha256)
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
    """Of all requests."""
    return {name: request.status for name, request in node.requests.items()}


def is_circle(p: Node, d: Node) -> bool:
    """Whether each waits for another."""
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
