"""What is mixed into vLLM's V1 model runners, so that their tokens come by `TokenTransfer`.

    synchronous scheduling    _bookkeeping_sync gets tensors that lie on the host already
    asynchronous scheduling   the step returns a `TokenOutput`; next inputs and penalties are vLLM's

vLLM's own events are exchanged for such that sleep where they spin.
"""

from collections.abc import Callable
from dataclasses import replace
from types import ModuleType
from typing import Any, ClassVar

from vllm import envs
from vllm.v1.worker import gpu_model_runner
from vllm.v1.worker.gpu_model_runner import AsyncGPUModelRunnerOutput  # vLLM's, also when ours has taken its place

from model_runner.runner.output import fields, outputs_through, with_logprobs
from model_runner.tokens import choose
from model_runner.tokens.packing import DEFAULT_TOP_LOGPROBS, Sizes
from model_runner.tokens.transfer import TokenTransfer

OUTPUT = "AsyncGPUModelRunnerOutput"
SPINNING = (
    "transfer_event",
    "draft_token_ids_event",
    "valid_sampled_token_count_event",
    "num_accepted_tokens_event",
    "_num_valid_draft_tokens_event",  # of ngram_gpu
)
"""Events that vLLM's runner makes without `blocking=True` and waits for on the model thread."""


class OwnsTransfer:
    """A V1 model runner with a `TokenTransfer`."""

    output_module: ClassVar[ModuleType] = gpu_model_runner  # where it looks for the class of its output
    device: Any
    vllm_config: Any

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        timeout_s = float(envs.VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS)  # vLLM's own bound of a step
        self.token_transfer = choose.transfer_for(self.device, sizes_of(self.vllm_config), timeout_s)
        self.token_transfer.start()
        setattr(self.output_module, OUTPUT, outputs_through(self.token_transfer, AsyncGPUModelRunnerOutput))
        if isinstance(self.token_transfer, TokenTransfer):
            self._exchange_events(self.token_transfer.make_event)

    def _exchange_events(self, make: Callable[[], Any]) -> None:
        for name in SPINNING:
            if getattr(self, name, None) is not None:
                setattr(self, name, make())


class EventSynced(OwnsTransfer):
    """A V1 model runner whose tokens, logprobs included, come by one copy."""

    use_async_scheduling: bool

    def _bookkeeping_sync(self, scheduler_output: Any, sampler_output: Any, *rest: Any, **more: Any) -> Any:
        """Bring the sampler's tensors to the host first, unless the step's output will.

        Not before the drafter has run: vLLM writes pinned buffers anew, the drafter's included, once it has waited here.
        Up to vLLM 0.30 its wait covers copies of routed experts as well, which it issues in here.
        """
        if not self.use_async_scheduling and not getattr(self, "routed_experts_initialized", False):
            logprobs = sampler_output.logprobs_tensors
            host = self.token_transfer.submit(fields(sampler_output.sampled_token_ids, logprobs)).result()
            sampler_output = replace(
                sampler_output, sampled_token_ids=host["ids"], logprobs_tensors=with_logprobs(logprobs, host)
            )
        return super()._bookkeeping_sync(scheduler_output, sampler_output, *rest, **more)  # type: ignore[misc]

    def _to_list(self, sampled_token_ids: Any) -> Any:
        """Return ids as lists; they lie on the host by now."""
        if sampled_token_ids.device.type == "cpu":
            return sampled_token_ids.tolist()
        return super()._to_list(sampled_token_ids)  # type: ignore[misc]


class ListsEventSynced(OwnsTransfer):
    """A V1 model runner of which only the ids come by our copy.

    vllm-ascend issues copies of its own between the sampler and `_to_list`, and lets the wait in there cover them.
    """

    def _to_list(self, sampled_token_ids: Any) -> Any:
        """Bring ids to the host and return them as lists."""
        return self.token_transfer.submit(fields(sampled_token_ids)).result()["ids"].tolist()


def sizes_of(vllm_config: Any) -> Sizes:
    """Return what a step of this engine can bring at most."""
    speculative = vllm_config.speculative_config
    top = vllm_config.model_config.max_logprobs
    return Sizes(
        max_num_seqs=vllm_config.scheduler_config.max_num_seqs,
        speculative_tokens=(speculative and speculative.num_speculative_tokens) or 0,
        top_logprobs=top if 0 <= top <= DEFAULT_TOP_LOGPROBS else DEFAULT_TOP_LOGPROBS,
    )
