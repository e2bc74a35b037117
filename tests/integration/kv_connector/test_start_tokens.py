"""Requests that start with a token, in vLLM's own scheduler with its own block pool; the workers are played."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from vllm.config import KVTransferConfig
from vllm.engine.arg_utils import EngineArgs
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, SlidingWindowSpec
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

from baton.contracts.kv_transfer import TransferParams, sign
from baton.contracts.secret import ClusterSecret
from baton.deploy.embedded_model import WEIGHTS
from baton.kv_connector.handoff.metadata import DecodeReport, Ending
from baton.kv_connector.protocol.messages import SampledToken
from baton.kv_connector.scheduler_side.start_tokens import MAKE_SCHEDULER, make_scheduler

BLOCK_TOKENS = 16
TOKEN = 7
SECRET = "a secret for these tests, long enough"
SHAPE: dict[str, Any] = {"block_size": BLOCK_TOKENS, "num_kv_heads": 1, "head_size": 2, "dtype": torch.float32}


class Engine:
    """A decode node's scheduler, one rank whose steps sample `TOKEN`, and peers that send what a test says."""

    def __init__(self, folder: Path, blocks: int, *, windows: bool = False) -> None:
        init_none_hash(sha256)
        secret_file = folder / "secret"
        secret_file.write_text(SECRET)
        secret_file.chmod(0o600)
        extra = {"runtime_dir": str(folder), "secret_file": str(secret_file), "weights": "w", "transfer": {}}
        config = EngineArgs(
            model=str(WEIGHTS),
            enforce_eager=True,
            block_size=BLOCK_TOKENS,
            max_model_len=512,
            max_num_batched_tokens=512,
            max_num_seqs=8,
            skip_tokenizer_init=True,
            scheduler_cls=MAKE_SCHEDULER,
            kv_transfer_config=KVTransferConfig(
                kv_connector="BatonConnector",
                kv_connector_module_path="baton.kv_connector.connector",
                kv_role="kv_consumer",
                kv_load_failure_policy="recompute",
                kv_connector_extra_config=extra,
            ),
        ).create_engine_config()
        config.cache_config.num_gpu_blocks = blocks
        groups = [KVCacheGroupSpec(["layer.0"], FullAttentionSpec(**SHAPE))]
        if windows:
            groups.append(KVCacheGroupSpec(["layer.1"], SlidingWindowSpec(**SHAPE, sliding_window=2 * BLOCK_TOKENS)))
        self.scheduler = make_scheduler(
            config,
            kv_cache_config=KVCacheConfig(blocks, kv_cache_tensors=[], kv_cache_groups=groups),
            structured_output_manager=StructuredOutputManager(config),
            block_size=BLOCK_TOKENS,
            log_stats=True,
        )
        self.pool: Any = self.scheduler.kv_cache_manager.block_pool

    def ask(self, name: str, tokens: int, **sampling: Any) -> Request:
        """A request arrives that wants its prompt's KV and first token from a prefill node."""
        params = TransferParams(transfer_id=name * 32, role="decode", peer="tcp://127.0.0.1:1", first_token=True)
        request = Request(
            name,
            [ord(name) * 10 + i for i in range(tokens)],
            SamplingParams(**({"max_tokens": 4, "ignore_eos": True} | sampling)),
            None,
            block_hasher=get_request_block_hasher(BLOCK_TOKENS, sha256),
        )
        request.kv_transfer_params = sign(params, ClusterSecret(SECRET.encode()))
        self.scheduler.add_request(request)
        return request

    def step(self, *, started: Sequence[str] = (), received: Sequence[str] = ()) -> int:
        """One step; return how many tokens it computes.

        Args:
            started: requests whose prompts P says that it computes.
            received: those whose KV has come, with a token.
        """
        output = self.scheduler.schedule()
        names = list(output.num_scheduled_tokens)
        requests = [self.scheduler.requests[name] for name in names]
        ending = Ending(at_s=0.0, reserve_sent_s=0.0, committed=True, timings_s={}, pushing_s=0.0)
        report = DecodeReport(
            endings=dict.fromkeys(received, ending),
            started={name * 32 for name in started},
            first_tokens=dict.fromkeys(received, SampledToken(id=TOKEN)),
            closed=list(received),
        )
        self.scheduler.update_from_output(
            output,
            ModelRunnerOutput(
                req_ids=names,
                req_id_to_index={name: i for i, name in enumerate(names)},
                sampled_token_ids=[[TOKEN] if each.num_computed_tokens >= each.num_tokens else [] for each in requests],
                kv_connector_output=KVConnectorOutput(finished_recving=set(received), kv_connector_worker_meta=report),
            ),
        )
        return int(output.total_num_scheduled_tokens)


@pytest.fixture
def engine(tmp_path: Path) -> Callable[..., Engine]:
    """Makes one."""
    return lambda *arguments, **more: Engine(tmp_path, *arguments, **more)


def test_a_pool_full_of_received_prompts_does_not_stand_still(engine: Callable[..., Engine]) -> None:
    """Each would need one more block for its first step, and none can be preempted: those without room compute as before."""
    made = engine(17)  # 16, and the null block
    one, other = made.ask("a", 8 * BLOCK_TOKENS), made.ask("b", 8 * BLOCK_TOKENS)
    made.step()
    made.step(started="ab")
    made.step()
    assert made.pool.get_num_free_blocks() == 0

    made.step(received="ab")
    for _ in range(20):
        made.step()

    assert one.is_finished()
    assert other.is_finished()
    assert made.pool.get_num_free_blocks() == 16


def test_a_received_request_computes_one_token_in_its_first_step(engine: Callable[..., Engine]) -> None:
    """The second of its answer."""
    made = engine(100)
    request = made.ask("a", 8 * BLOCK_TOKENS)
    made.step()

    made.step(received="a")

    assert list(request.output_token_ids) == [TOKEN]
    assert made.step() == 1
    assert list(request.output_token_ids) == [TOKEN, TOKEN]


@pytest.mark.parametrize("windows", [False, True])
def test_an_answer_of_one_token_takes_no_step(engine: Callable[..., Engine], windows: bool) -> None:
    """Its blocks are back, of every KV cache group."""
    made = engine(100, windows=windows)
    request = made.ask("a", 40, stop_token_ids=[TOKEN])
    made.step()

    made.step(received="a")

    assert request.is_finished()
    assert (made.step(), made.pool.get_num_free_blocks()) == (0, 99)
