"""What is mixed into vLLM's V1 model runners, so that their tokens come by `TokenTransfer`.

    synchronous scheduling    _bookkeeping_sync gets tensors that lie on the host already
    asynchronous scheduling   the step returns a `TokenOutput`; next inputs and penalties are vLLM's

Drafts and counts travel in the same copy: `companions`. vLLM's own events are exchanged for such that sleep.
"""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType, ModuleType
from typing import Any, ClassVar

from vllm.v1.worker import gpu_model_runner
from vllm.v1.worker.gpu_model_runner import AsyncGPUModelRunnerOutput

from baton.model_runner.runner.attribute_patch import in_place_of
from baton.model_runner.runner.output import fields, outputs_through, with_logprobs
from baton.model_runner.runner.piggybacked_copies import Companion, PiggybackedCopies
from baton.model_runner.tokens.packing import DEFAULT_TOP_LOGPROBS, most_bytes
from baton.model_runner.tokens.transfer import TokenTransfer, transfer_for

OUTPUT = "AsyncGPUModelRunnerOutput"
EVENTS = (
    "transfer_event",
    "draft_token_ids_event",
    "valid_sampled_token_count_event",
    "num_accepted_tokens_event",
    "_num_valid_draft_tokens_event",  # of ngram_gpu
    "prepare_inputs_event",  # under asynchronous scheduling
)
"""Events that vLLM's runner keeps and waits for on the model thread; most of them spin."""

COMPANIONS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "drafts": ("draft_token_ids_cpu", "draft_token_ids_event"),
        "sampled_counts": ("valid_sampled_token_count_cpu", "valid_sampled_token_count_event"),
        "draft_counts": ("_num_valid_draft_tokens_cpu", "_num_valid_draft_tokens_event"),
    }
)
"""vLLM's pinned buffers, and the event of each; by the name in a step's copy."""
ACCEPTED, ACCEPTED_BUFFER, ACCEPTED_EVENT = "accepted", "num_accepted_tokens_cpu_tensor", "num_accepted_tokens_event"


class OwnsTransfer:
    """A V1 model runner with a `TokenTransfer`."""

    output_module: ClassVar[ModuleType] = gpu_model_runner  # where it looks for the class of its output
    device: Any
    vllm_config: Any

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.token_transfer = transfer_for(self.device, slot_bytes_of(self.vllm_config))
        self.token_transfer.start()
        self.companions = PiggybackedCopies(self.token_transfer)
        self._make_output = outputs_through(self.companions, AsyncGPUModelRunnerOutput)
        if isinstance(self.token_transfer, TokenTransfer):
            self._exchange(self.token_transfer)

    def sample_tokens(self, *step: Any, **more: Any) -> Any:
        with in_place_of(self.output_module, OUTPUT, self._make_output):
            return super().sample_tokens(*step, **more)  # type: ignore[misc]

    def _exchange(self, transfer: TokenTransfer) -> None:
        for name in EVENTS:
            if getattr(self, name, None) is not None:
                setattr(self, name, transfer.event())


class EventSynced(OwnsTransfer):
    """A V1 model runner whose tokens, with logprobs, drafts and counts, come by one copy."""

    use_async_scheduling: bool
    input_batch: Any

    def _exchange(self, transfer: TokenTransfer) -> None:
        super()._exchange(transfer)
        for name, (buffer, event) in COMPANIONS.items():
            if getattr(self, event, None) is not None:
                companion = Companion(name, getattr(self, event), self.companions, getattr(self, buffer))
                setattr(self, buffer, companion)
                setattr(self, event, companion)
        if getattr(self, ACCEPTED_EVENT, None) is not None:  # its buffer is of a batch, which vLLM makes again
            setattr(self, ACCEPTED_EVENT, Companion(ACCEPTED, getattr(self, ACCEPTED_EVENT), self.companions))

    def _update_states_after_model_execute(self, *step: Any, **more: Any) -> Any:
        """Have accepted counts travel with the step's tokens; the next step waits for them before it writes there."""
        accepted = getattr(self, ACCEPTED_EVENT, None)
        if not isinstance(accepted, Companion):
            return super()._update_states_after_model_execute(*step, **more)  # type: ignore[misc]
        accepted.buffer = getattr(self.input_batch, ACCEPTED_BUFFER)
        with in_place_of(self.input_batch, ACCEPTED_BUFFER, accepted):
            return super()._update_states_after_model_execute(*step, **more)  # type: ignore[misc]

    def _bookkeeping_sync(self, scheduler_output: Any, sampler_output: Any, *rest: Any, **more: Any) -> Any:
        """Bring the sampler's tensors to the host first, unless the step's output will.

        Not before the drafter has run: vLLM writes pinned buffers again, the drafter's included, once it has waited
        here, and moves rows of accepted counts. Up to vLLM 0.30 its wait covers copies of routed experts as well, which
        it issues in here.
        """
        if not self.use_async_scheduling:
            if getattr(self, "routed_experts_initialized", False):
                self.companions.submit_alone()
            else:
                logprobs = sampler_output.logprobs_tensors
                host = self.companions.submit(fields(sampler_output.sampled_token_ids, logprobs)).result()
                sampler_output = replace(
                    sampler_output, sampled_token_ids=host["ids"], logprobs_tensors=with_logprobs(logprobs, host)
                )
            self.companions.land()
        return super()._bookkeeping_sync(scheduler_output, sampler_output, *rest, **more)  # type: ignore[misc]

    def _to_list(self, sampled_token_ids: Any) -> Any:
        if sampled_token_ids.device.type == "cpu":  # by now
            return sampled_token_ids.tolist()
        return super()._to_list(sampled_token_ids)  # type: ignore[misc]


class ListsEventSynced(OwnsTransfer):
    """A V1 model runner of which only the ids do: vllm-ascend's wait in `_to_list` covers copies of its own too."""

    def _to_list(self, sampled_token_ids: Any) -> Any:
        return self.token_transfer.submit(fields(sampled_token_ids)).result()["ids"].tolist()


def slot_bytes_of(vllm_config: Any) -> int:
    """Return what a step of this engine can bring at most."""
    speculative = vllm_config.speculative_config
    top = vllm_config.model_config.max_logprobs
    return most_bytes(
        max_num_seqs=vllm_config.scheduler_config.max_num_seqs,
        speculative_tokens=(speculative and speculative.num_speculative_tokens) or 0,
        top_logprobs=top if 0 <= top <= DEFAULT_TOP_LOGPROBS else DEFAULT_TOP_LOGPROBS,
    )
