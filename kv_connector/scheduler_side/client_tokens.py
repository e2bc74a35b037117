"""Requests that start with tokens which their client has: those that can, and those that are refused since they would say them twice."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from baton.contracts.kv_transfer import TransferParams
from baton.kv_connector.protocol.messages import SampledToken
from baton.kv_connector.scheduler_side.first_token import num_logprobs, wanted_logprobs
from baton.kv_connector.scheduler_side.start_tokens import refuse_to_start, start_at_once
from baton.kv_connector.scheduler_side.tracking import is_named
from baton.kv_connector.telemetry.refusals import Refusals, Refused

if TYPE_CHECKING:
    from vllm.v1.request import Request


class ClientTokens:
    """Of one decode engine."""

    def __init__(self, refusals: Refusals, totals: dict[str, int], vocab_size: int, *, can_start: bool) -> None:
        """`can_start`: the engine has our scheduler; `totals` counts in `started`."""
        self._refusals = refusals
        self._totals = totals
        self._vocab_size = vocab_size
        self._can_start = can_start
        self._started: dict[str, str] = {}  # request id → transfer id

    def start(self, request: "Request", params: TransferParams) -> bool:
        """Have a request that has just arrived start with the tokens that its parameters name, or end with an error."""
        reason = objection(request, params, self._vocab_size)
        if not self._can_start:
            reason = "this engine does not start requests with tokens"
        elif params.transfer_id in self._started.values():
            reason = "it is one of several answers"
        if reason:
            self._refusals.count(Refused.START, f"{params.transfer_id}: {reason}")
            refuse_to_start(request)
            return False
        self._started[request.request_id] = params.transfer_id
        start_at_once(request, tokens_of_client(request, params.start), self._totals)
        return True

    def forget(self, request_id: str) -> None:
        """A request has ended."""
        self._started.pop(request_id, None)


def tokens_of_client(request: "Request", ids: Sequence[int]) -> list[SampledToken]:
    """Return tokens that the client has, with logprobs in the form that vLLM's server wants to see: the proxy drops them."""
    wants = request.sampling_params is not None and num_logprobs(request.sampling_params) is not None
    width = (wanted_logprobs(request) or 1) if wants else 0
    return [SampledToken(id=one, logprob_ids=(one,) * width, logprobs=(0.0,) * width, rank=1) for one in ids]


def objection(request: "Request", params: TransferParams, vocab_size: int) -> str:
    """Return why a request cannot start with the tokens that its parameters name; "" if it can."""
    sampling = request.sampling_params
    if params.several or not is_named(request):
        return "it is one prompt of several, or has no token ids"
    if sampling is None or sampling.prompt_logprobs is not None:
        return "it has prompt logprobs, or samples nothing"
    return "the model has no such token" if max(params.start) >= vocab_size else ""
