"""A step of requests `a` and `b` on a late device, by vLLM's own code of its runner."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from vllm.v1.outputs import LogprobsTensors, SamplerOutput
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

from tests.support.late_tensor import LateWorld

MAX_TOKENS = 64


def bare_runner(kind: type[GPUModelRunner], world: LateWorld) -> Any:
    """Make a runner with what the bookkeeping of a step looks at, and nothing else."""
    made: Any = object.__new__(kind)
    made.use_async_scheduling = False
    made.max_model_len = MAX_TOKENS
    made.transfer_event = world.event()
    made.sampled_token_ids_pinned_cpu = torch.empty(4, 1, dtype=torch.int64)
    made.discard_request_mask = SimpleNamespace(np=np.zeros(4, dtype=bool))
    made.requests = {name: SimpleNamespace(output_token_ids=[]) for name in "ab"}
    made.input_batch = SimpleNamespace(
        num_reqs=2,
        generators={},
        req_ids=["a", "b"],
        req_id_to_index={"a": 0, "b": 1},
        vocab_size=1000,
        num_tokens_no_spec=np.zeros(4, dtype=np.int32),
        token_ids_cpu=np.zeros((4, MAX_TOKENS), dtype=np.int32),
        is_token_ids=np.zeros((4, MAX_TOKENS), dtype=bool),
    )
    made._get_prompt_logprobs_dict = lambda *_: {}
    return made


def book(runner: Any, ids: Any, tops: LogprobsTensors | None = None) -> Any:
    """Let a runner book a step under synchronous scheduling."""
    output = SamplerOutput(sampled_token_ids=ids, logprobs_tensors=tops)
    return runner._bookkeeping_sync(SimpleNamespace(num_scheduled_tokens={}), output, None, torch.zeros(2), 2)


def top_logprobs(world: LateWorld, tokens: int) -> LogprobsTensors:
    """Two of each token."""
    values = torch.arange(tokens * 2, dtype=torch.float32).view(-1, 2)
    ranks = torch.ones(tokens, dtype=torch.int64)
    return LogprobsTensors(*map(world.sampled, (values.to(torch.int32), -values, ranks)))
