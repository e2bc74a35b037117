"""vLLM's scheduler, for requests that start with tokens that another node has generated.

Such tokens are output in every respect. vLLM has one way to give a request output while it does not run: that of a step
which was in flight when the request was preempted. It appends the tokens, looks for stops, advances the grammar, makes
the request's output, and frees a request that has ended. A request's start is given to it in that way, before it is
scheduled: tokens that come with the prompt's KV when that has come; tokens that the client has already, as soon as the
request has arrived, whatever becomes of its KV.
"""

import time
from collections.abc import Callable, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.engine import EngineCoreEventType, EngineCoreOutputs, FinishReason
from vllm.v1.outputs import KVConnectorOutput, LogprobsLists, ModelRunnerOutput
from vllm.v1.request import RequestStatus

from baton.kv_connector.protocol.messages import SampledToken
from baton.kv_connector.scheduler_side.first_output import Outputs, add_end

if TYPE_CHECKING:
    from vllm.v1.core.kv_cache_manager import KVCacheManager
    from vllm.v1.request import Request

# Attributes of vLLM's `Request`.
_START: Final = "baton_start"  # with its KV
_START_AT_ONCE: Final = "baton_start_at_once"  # no tokens: it ends
_KV_IS_LOST: Final = "baton_kv_is_lost"  # of a request for KV alone

# In the place of a connector's methods: it is not told of the end of a step, since none has ended.
_NO_STEP: Final = MappingProxyType({"take_events": tuple, "get_kv_connector_stats": lambda: None})


class _Start(NamedTuple):
    tokens: Sequence[SampledToken]
    totals: dict[str, int]
    reason: FinishReason = FinishReason.ERROR  # for which a request without tokens ends


def start_with(request: "Request", tokens: Sequence[SampledToken], totals: dict[str, int]) -> None:
    """Have a request whose KV has come, and that has not been scheduled, start with these tokens, if there is room for them.

    There is at least one; `totals` counts in `started` that it has.
    """
    setattr(request, _START, _Start(tokens, totals))


def start_at_once(request: "Request", tokens: Sequence[SampledToken], totals: dict[str, int]) -> None:
    """The same for a request that has just arrived: it starts with these tokens before it is scheduled."""
    setattr(request, _START_AT_ONCE, _Start(tokens, totals))


def refuse_to_start(request: "Request") -> None:
    setattr(request, _START_AT_ONCE, _Start((), {}))


def abort_at_once(request: "Request") -> None:
    """Have a request that has just arrived end before it is scheduled."""
    setattr(request, _START_AT_ONCE, _Start((), {}, FinishReason.ABORT))


def abort_without_kv(request: "Request", *, is_lost: bool) -> None:
    """Have a request that has just arrived end when its KV is lost; it is, or it may come yet."""
    setattr(request, _KV_IS_LOST, is_lost)


class StartTokens:
    """Mixin of a scheduler of vLLM's."""

    connector: Any
    log_stats: bool
    requests: "dict[str, Request]"
    finished_recving_kv_req_ids: set[str]
    kv_cache_manager: "KVCacheManager"
    num_lookahead_tokens: int
    structured_output_manager: Any
    finish_requests: Callable[[str, RequestStatus], Any]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._held: list[Request] = []  # they start at once
        self._kv_only: list[Request] = []

    def add_request(self, request: "Request") -> None:
        """Take a request in, of which the connector may say here that it starts with tokens; it is not scheduled before it has."""
        super().add_request(request)  # type: ignore[misc]
        if _START_AT_ONCE in request.__dict__:
            request.num_in_flight_tokens = request.num_stale_output_tokens = 1
            self._held.append(request)
        if _KV_IS_LOST in request.__dict__:
            self._kv_only.append(request)

    def update_from_output(self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput) -> Outputs:
        """Take in a step, and give requests their tokens: those that have arrived, and those whose KV it brought.

        Here and not in `schedule`: what is delivered now is sent to the client before the next step runs.
        """
        outputs: Outputs = super().update_from_output(scheduler_output, model_runner_output)  # type: ignore[misc]
        if received := model_runner_output.kv_connector_output:
            self._start_received(received, outputs)
        if self._kv_only:
            self._kv_only = [request for request in self._kv_only if not self._end_without_kv(request, outputs)]
        if self._held:
            self._held = [request for request in self._held if not self._start_held(request, outputs)]
        return outputs

    def schedule(self, *args: Any, **kwargs: Any) -> SchedulerOutput:
        """Schedule a step; a worker that has vLLM's V1 runner learns from `prefill_token_ids` with which tokens a request starts."""
        output: SchedulerOutput = super().schedule(*args, **kwargs)  # type: ignore[misc]
        for new in output.scheduled_new_reqs:
            request = self.requests[new.req_id]
            if request.num_output_tokens and new.prefill_token_ids is None:
                new.prefill_token_ids = list(request.all_token_ids)
        return output

    def _start_received(self, received: KVConnectorOutput, outputs: Outputs) -> None:
        for request_id in received.finished_recving or ():
            request = self.requests.get(request_id)
            start: _Start | None = request.__dict__.pop(_START, None) if request is not None else None
            if request is None or start is None or request.is_finished() or not self._has_room(request, start.tokens):
                continue  # without room it computes its last prompt token again, and samples
            self._deliver(request, start, outputs)

    def _start_held(self, request: "Request", outputs: Outputs) -> bool:
        """Return whether it need not be held any longer; vLLM waits for its grammar first."""
        start: _Start = request.__dict__[_START_AT_ONCE]
        if request.is_finished():
            return True
        if not start.tokens:
            self._end(request, outputs, start.reason)
            return True
        if request.status != RequestStatus.WAITING:
            return False
        if request.prefill_stats is not None:  # the first output takes them; what will be cached is not known yet
            request.prefill_stats.set(request.num_prompt_tokens, 0, 0)
        self._deliver(request, start, outputs)
        return True

    def _end_without_kv(self, request: "Request", outputs: Outputs) -> bool:
        """Return whether a request for KV alone has ended; what it lacks is not computed in a step after this one."""
        if request.is_finished():
            return True
        if request.__dict__[_KV_IS_LOST]:
            self._end(request, outputs, FinishReason.ABORT)
        return bool(request.is_finished())

    def _end(self, request: "Request", outputs: Outputs, reason: FinishReason) -> None:
        statuses = {
            FinishReason.ERROR: RequestStatus.FINISHED_ERROR,
            FinishReason.ABORT: RequestStatus.FINISHED_ABORTED,
        }
        self.finish_requests(request.request_id, statuses[reason])
        add_end(outputs, request.client_index, request.request_id, reason, request.trace_headers)

    def _has_room(self, request: "Request", tokens: Sequence[SampledToken]) -> bool:
        """Allocate the blocks of a request's first step, in which these tokens are computed.

        vLLM has allocated as many as the prompt needs, and keeps those free that tokens need which it knew of then, but
        not others. A request that needs one more cannot be preempted, and the others that wait stand behind it: once
        all blocks were held by such requests, none would ever run.
        """
        missing = request.num_tokens + len(tokens) - request.num_computed_tokens
        lookahead = self.num_lookahead_tokens
        manager = self.kv_cache_manager
        blocks = manager.allocate_slots(request, missing, num_lookahead_tokens=lookahead, delay_cache_blocks=True)
        if blocks is not None:  # its KV has come: what `usage` says of the prefix cache is asked with the first token
            manager.cache_blocks(request, request.num_computed_tokens)
        return blocks is not None

    def _deliver(self, request: "Request", start: _Start, outputs: Outputs) -> None:
        start.totals["started"] += 1
        if request.structured_output_request is not None and (look := _reasoning_check(self.structured_output_manager)):
            look(request)
        logs = self.log_stats
        if logs:  # vLLM takes the first such event for the end of the time in the queue
            request.record_event(EngineCoreEventType.SCHEDULED, time.monotonic())
        self.log_stats = False
        vars(self.connector).update(_NO_STEP)
        try:
            for token in start.tokens:
                request.num_in_flight_tokens = request.num_stale_output_tokens = 1
                step = SchedulerOutput.make_empty()
                step.num_scheduled_tokens = {request.request_id: 1}
                _add(outputs, super().update_from_output(step, _output_of(request.request_id, token)))  # type: ignore[misc]
                if request.is_finished():
                    self.finished_recving_kv_req_ids.discard(request.request_id)
                    return
        finally:
            self.log_stats = logs
            for name in _NO_STEP:
                del vars(self.connector)[name]


def _reasoning_check(manager: Any) -> Callable[["Request"], bool] | None:
    """Return what has vLLM before 0.30 find out whether a prompt has ended the model's reasoning, which it else does in a request's first step.

    A grammar is not advanced by tokens that come before that is known.
    """
    return None if hasattr(manager, "accept_tokens") else manager.should_fill_bitmask


def _output_of(request_id: str, token: SampledToken) -> ModelRunnerOutput:
    """Return what a step is like that has sampled this token, and nothing else."""
    lists = None
    if token.logprob_ids:
        lists = LogprobsLists(
            np.array([token.logprob_ids], np.int32),
            np.array([token.logprobs], np.float32),
            np.array([token.rank], np.int32),
            None,
        )
    return ModelRunnerOutput([request_id], {request_id: 0}, sampled_token_ids=[[token.id]], logprobs=lists)


def _add(outputs: Outputs, more: Outputs) -> None:
    for client, those in more.items():
        all_of_them = outputs.setdefault(client, EngineCoreOutputs())
        all_of_them.outputs.extend(those.outputs)
        if those.finished_requests:
            all_of_them.finished_requests = (all_of_them.finished_requests or set()) | those.finished_requests
