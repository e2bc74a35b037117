"""The asynchronous output: what a step under asynchronous scheduling returns before its tokens are on the host.

vLLM's own class copies each tensor by itself and waits without a bound. Ours takes its place in the construction only:
`get_output`, which makes lists of what has come, is vLLM's, and a `Handle` is the event that it waits for. So are penalties
and bad words, which ask the same event for the tokens of the step before.
"""

from collections.abc import Callable
from typing import Any, Final

import torch
from vllm.v1.outputs import LogprobsTensors
from vllm.v1.worker.gpu_model_runner import AsyncGPUModelRunnerOutput

from baton.model_runner.runner.piggybacked_copies import PiggybackedCopies
from baton.model_runner.tokens.handles import Tensors

# What vLLM makes an output of, as far as we know; the stream is for its own copies.
_KNOWN: Final = frozenset(
    (
        *("model_runner_output", "sampled_token_ids", "logprobs_tensors", "invalid_req_indices", "vocab_size"),
        *("num_nans", "async_output_copy_stream"),
    )
)


class TokenOutput(AsyncGPUModelRunnerOutput):
    """vLLM's asynchronous output over one packed copy."""

    def __init__(
        self,
        companions: PiggybackedCopies,
        *,
        model_runner_output: Any,
        sampled_token_ids: torch.Tensor,
        logprobs_tensors: LogprobsTensors | None,
        invalid_req_indices: list[int],
        vocab_size: int,
        num_nans: torch.Tensor | None = None,
        **_unused: Any,
    ) -> None:
        """Submit a step's tensors; not the constructor of vLLM's class, but what that one sets."""
        handle = companions.submit(fields(sampled_token_ids, logprobs_tensors, num_nans))
        self.async_copy_ready_event: Any = handle
        self.sampled_token_ids_cpu = handle.tensors["ids"]
        self.vocab_size = vocab_size
        self._model_runner_output = model_runner_output
        self._invalid_req_indices = invalid_req_indices
        self._logprobs_tensors_cpu = with_logprobs(logprobs_tensors, handle.tensors)
        self._num_nans_cpu = handle.tensors.get("nans")
        self._has_fault = None
        self._routed_experts = self._routed_experts_cpu = None  # up to vLLM 0.30
        # On the device, which the transfer holds as long as needed. `get_output` drops them.
        self._sampled_token_ids, self._logprobs_tensors, self._num_nans = sampled_token_ids, logprobs_tensors, num_nans


def fields(
    ids: torch.Tensor, logprobs: LogprobsTensors | None = None, nans: torch.Tensor | None = None
) -> dict[str, torch.Tensor]:
    found = {"ids": ids}
    if logprobs is not None:
        found["logprob_ids"] = logprobs.logprob_token_ids
        found["logprobs"] = logprobs.logprobs
        found["ranks"] = logprobs.selected_token_ranks
    if nans is not None:
        found["nans"] = nans
    return found


def with_logprobs(logprobs: LogprobsTensors | None, host: Tensors) -> LogprobsTensors | None:
    if logprobs is None:
        return None
    return logprobs._replace(
        logprob_token_ids=host["logprob_ids"], logprobs=host["logprobs"], selected_token_ranks=host["ranks"]
    )


def outputs_through(companions: PiggybackedCopies, theirs: Callable[..., Any]) -> Callable[..., Any]:
    """Return what stands in for the construction of `theirs`, vLLM's class, in a runner's module.

    A step with anything that we do not know is left to vLLM: the fault mask of expert parallelism, vllm-ascend's routed
    experts. Its drafts and counts travel alone then.
    """

    def make(**step: Any) -> Any:
        if any(value is not None and value is not False for name, value in step.items() if name not in _KNOWN):
            companions.submit_alone()
            return theirs(**step)
        return TokenOutput(companions, **step)

    return make
