"""Which requests P samples the first token for, and which tokens D starts with."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from baton.contracts.kv_transfer import TransferParams
from baton.kv_connector.protocol.messages import MAX_LOGPROBS, SampledToken
from baton.kv_connector.scheduler_side.tracking import is_named

if TYPE_CHECKING:
    from vllm.sampling_params import SamplingParams
    from vllm.v1.request import Request


def wanted_logprobs(request: "Request") -> int | None:
    """Return how many log probabilities go with a request's first token; None if the token cannot go with its commit.

    That is so for those of the whole vocabulary (`-1`) or of tokens that the client names, and for prompt logprobs, which D computes.
    """
    sampling = request.sampling_params
    if sampling is None or sampling.prompt_logprobs is not None or getattr(sampling, "logprob_token_ids", None):
        return None
    wanted = _num_logprobs(sampling)
    if wanted is None:
        return 0
    return wanted + 1 if 0 <= wanted < MAX_LOGPROBS else None


def _num_logprobs(sampling: "SamplingParams") -> int | None:
    wanted: int | None = sampling.num_logprobs if hasattr(sampling, "num_logprobs") else sampling.logprobs
    return wanted


def may_start(request: "Request", token: SampledToken, vocab_size: int) -> bool:
    """Whether a request can start with what a prefill node says: a token of the model, with the logprobs that are asked for."""
    ids, wanted = (token.id, *token.logprob_ids), wanted_logprobs(request)
    return max(ids) < vocab_size and len(token.logprob_ids) == len(token.logprobs) == wanted


def tokens_of_client(request: "Request", ids: Sequence[int]) -> list[SampledToken]:
    """Return tokens that the client has, with logprobs in the form that vLLM's server wants to see: the proxy drops them."""
    wants = request.sampling_params is not None and _num_logprobs(request.sampling_params) is not None
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
