"""Which requests P samples the first token for, and which tokens D starts with."""

from typing import TYPE_CHECKING

from baton.kv_connector.protocol.messages import MAX_LOGPROBS, SampledToken

if TYPE_CHECKING:
    from vllm.sampling_params import SamplingParams
    from vllm.v1.request import Request


def wanted_logprobs(request: "Request") -> int | None:
    """Return how many log probabilities go with a request's first token; None if the token cannot go with its commit.

    So it is for those of the whole vocabulary (`-1`) or of named tokens, and for prompt logprobs, which D computes.
    """
    sampling = request.sampling_params
    if sampling is None or sampling.prompt_logprobs is not None or getattr(sampling, "logprob_token_ids", None):
        return None
    wanted = num_logprobs(sampling)
    if wanted is None:
        return 0
    return wanted + 1 if 0 <= wanted < MAX_LOGPROBS else None


def num_logprobs(sampling: "SamplingParams") -> int | None:
    wanted: int | None = sampling.num_logprobs if hasattr(sampling, "num_logprobs") else sampling.logprobs
    return wanted


def may_start(request: "Request", token: SampledToken, vocab_size: int) -> bool:
    """Whether a request can start with what a prefill node says: a token of the model, with the logprobs that are asked for."""
    ids, wanted = (token.id, *token.logprob_ids), wanted_logprobs(request)
    return max(ids) < vocab_size and len(token.logprob_ids) == len(token.logprobs) == wanted
