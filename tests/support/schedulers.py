"""vLLM's own scheduler as a node's engine has it, with its own block pool and our connector; a test plays the workers."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import torch
from vllm.config import KVTransferConfig, VllmConfig
from vllm.engine.arg_utils import EngineArgs
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import EngineCoreOutput
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    MambaSpec,
    SlidingWindowSpec,
)
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

from baton.contracts.kv_transfer import TransferParams, sign
from baton.contracts.secret import ClusterSecret
from baton.deploy.embedded_model import WEIGHTS
from baton.kv_connector.scheduler_side.scheduler import MAKE_SCHEDULER, make_scheduler

BLOCK_TOKENS = 16
SECRET = "a secret for these tests, long enough"
SHAPE: dict[str, Any] = {"block_size": BLOCK_TOKENS, "num_kv_heads": 1, "head_size": 2, "dtype": torch.float32}


def engine_config(
    folder: Path,
    kv_role: Literal["kv_producer", "kv_consumer", "kv_both"],
    settings: Mapping[str, Any] = MappingProxyType({}),
    **more: Any,
) -> VllmConfig:
    """Return the configuration of a node's engine; `settings` of our connector, `more` as vLLM's flags have it."""
    secret_file = folder / "secret"
    secret_file.write_text(SECRET)
    secret_file.chmod(0o600)
    extra = {"runtime_dir": str(folder), "secret_file": str(secret_file), "weights": "w", "transfer": {}, **settings}
    flags: dict[str, Any] = {
        "model": str(WEIGHTS),
        "enforce_eager": True,
        "block_size": BLOCK_TOKENS,
        "max_model_len": 512,
        "max_num_batched_tokens": 512,
        "max_num_seqs": 8,
        "skip_tokenizer_init": True,
        "scheduler_cls": MAKE_SCHEDULER,
        "kv_transfer_config": KVTransferConfig(
            kv_connector="BatonConnector",
            kv_connector_module_path="baton.kv_connector.connector",
            kv_role=kv_role,
            kv_load_failure_policy="recompute",
            kv_connector_extra_config=extra,
        ),
    }
    return EngineArgs(**flags | more).create_engine_config()


def scheduler_of(
    config: VllmConfig, blocks: int, *, windows: bool = False, states: bool = False, drafts: int = 0
) -> Scheduler:
    """Make a scheduler with so many blocks, the null block among them.

    `states`: some layers are recurrent, their states cached. `drafts`: they are not cached, and so many tokens are drafted a step.
    """
    init_none_hash(sha256)
    config.cache_config.num_gpu_blocks = blocks
    groups = [KVCacheGroupSpec(["layer.0"], FullAttentionSpec(**SHAPE))]
    if windows:
        groups.append(KVCacheGroupSpec(["layer.1"], SlidingWindowSpec(**SHAPE, sliding_window=2 * BLOCK_TOKENS)))
    if states:
        config.cache_config.mamba_cache_mode = "align"
        state: dict[str, Any] = {"shapes": ((4,),), "dtypes": (torch.float32,), "mamba_cache_mode": "align"}
        groups.append(KVCacheGroupSpec(["layer.1"], MambaSpec(block_size=BLOCK_TOKENS, **state)))
    if drafts:
        state = {"shapes": ((4,),), "dtypes": (torch.float32,), "num_speculative_blocks": drafts}
        groups.append(KVCacheGroupSpec(["layer.1"], MambaSpec(block_size=config.model_config.max_model_len, **state)))
    return make_scheduler(
        config,
        kv_cache_config=KVCacheConfig(blocks, kv_cache_tensors=[], kv_cache_groups=groups),
        structured_output_manager=StructuredOutputManager(config),
        block_size=config.model_config.max_model_len if drafts else BLOCK_TOKENS,
        log_stats=True,
    )


def request_of(name: str, tokens: int, params: TransferParams, *, prompt: str = "", **sampling: Any) -> Request:
    """A request with signed parameters; its prompt is that of all requests that begin with the same letter, or `prompt` does."""
    request = Request(
        name,
        [ord((prompt or name)[0]) * 10 + i for i in range(tokens)],
        SamplingParams(**({"max_tokens": 4, "ignore_eos": True} | sampling)),
        None,
        block_hasher=get_request_block_hasher(BLOCK_TOKENS, sha256),
    )
    request.kv_transfer_params = sign(params, ClusterSecret(SECRET.encode()))
    return request


def end_step(
    scheduler: Scheduler, output: SchedulerOutput, sampled: Mapping[str, Sequence[int]], **said: Any
) -> dict[int, list[EngineCoreOutput]]:
    """Play the workers at the end of a step; return what each client, by its number, is told.

    `sampled`: by request; of those that are missing nothing was sampled. `said`: by our connector's worker, see `KVConnectorOutput`.
    """
    names = list(output.num_scheduled_tokens)
    made = ModelRunnerOutput(
        req_ids=names,
        req_id_to_index={name: i for i, name in enumerate(names)},
        sampled_token_ids=[[*sampled.get(name, ())] for name in names],
        kv_connector_output=KVConnectorOutput(**said),
    )
    told = scheduler.update_from_output(output, made)
    return {client: outputs.outputs for client, outputs in told.items()}
