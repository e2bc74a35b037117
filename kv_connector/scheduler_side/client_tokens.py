"""Requests that start with tokens which their answer has: those that can, and those that are refused since they would say them twice."""

from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING

from baton.contracts.kv_transfer import TransferParams
from baton.kv_connector.protocol.messages import SampledToken
from baton.kv_connector.scheduler_side.first_token import num_logprobs, wanted_logprobs
from baton.kv_connector.scheduler_side.start_tokens import refuse_to_start, start_at_once
from baton.kv_connector.scheduler_side.tracking import choice_of, is_named
from baton.kv_connector.telemetry.refusals import Refusals, Refused

if TYPE_CHECKING:
    from vllm.v1.request import Request

MAX_STARTED = 4096


class ClientTokens:
    """The requests of one decode engine that start with their client's tokens."""

    def __init__(self, refusals: Refusals, totals: dict[str, int], vocab_size: int, *, can_start: bool) -> None:
        """`can_start`: the engine has our scheduler; `totals` counts in `started`."""
        self._refusals = refusals
        self._totals = totals
        self._vocab_size = vocab_size
        self._can_start = can_start
        self._started: OrderedDict[tuple[str, int], None] = OrderedDict()  # transfer id and choice, the last of them

    def start(self, request: "Request", params: TransferParams) -> bool:
        """Start a request that has just arrived with its choice's tokens, if it has any. False: it ends with an error."""
        choice, tokens = choice_of(request), start_of(request, params)
        if not tokens:
            return True
        reason = objection(request, tokens, self._vocab_size)
        if not self._can_start:
            reason = "this engine does not start requests with tokens"
        elif (params.transfer_id, choice) in self._started:
            reason = "another request has started with them"
        if reason:
            self._refusals.count(Refused.START, f"{params.transfer_id}: {reason}")
            refuse_to_start(request)
            return False
        self._started[params.transfer_id, choice] = None
        if len(self._started) > MAX_STARTED:
            self._started.popitem(last=False)
        start_at_once(request, tokens_of_client(request, tokens), self._totals)
        return True


def start_of(request: "Request", params: TransferParams) -> Sequence[int]:
    choice = choice_of(request)
    return params.start[choice] if 0 <= choice < len(params.start) else ()


def tokens_of_client(request: "Request", ids: Sequence[int]) -> list[SampledToken]:
    """Return tokens that the client has, with logprobs in the form that vLLM's server wants to see: the proxy drops them."""
    wants = request.sampling_params is not None and num_logprobs(request.sampling_params) is not None
    width = (wanted_logprobs(request) or 1) if wants else 0
    return [SampledToken(id=one, logprob_ids=(one,) * width, logprobs=(0.0,) * width, rank=1) for one in ids]


def objection(request: "Request", tokens: Sequence[int], vocab_size: int) -> str:
    sampling = request.sampling_params
    if not is_named(request):
        return "its prompt has no token ids"
    if sampling is None or sampling.prompt_logprobs is not None:
        return "it has prompt logprobs, or samples nothing"
    return "the model has no such token" if max(tokens) >= vocab_size else ""
