"""P's prompt without its last token, for a model with recurrent layers.

D computes the prompt's last token itself, from the state that the token before has left. P cannot go back to that state
once it has computed the last token: so it never does. What the proxy and the client see is not ours: the node's HTTP
side has its own copy of the prompt, counts its tokens there, and P's one output token is thrown away in any case.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vllm.v1.request import Request


def objection(request: "Request") -> str:
    """Return why a prompt cannot do without its last token on P; "" if it can, or has no other."""
    sampling = request.sampling_params
    if sampling is not None and sampling.prompt_logprobs is not None:
        return "prompt logprobs need the whole prompt, and a recurrent layer's state is that of all tokens but the last"
    last = request.num_prompt_tokens - 1
    if any(feature.mm_position.offset + feature.mm_position.length > last for feature in request.mm_features):
        return "the prompt ends within an image, a sound or a file, of which the prefill node cannot leave a token out"
    return ""


def shorten(request: "Request") -> tuple[int, ...]:
    """Take the last token off a prompt that has not been scheduled; return what was taken: nothing of a single token.

    Source:
        `MooncakeConnector._truncate_mamba_request_for_prefill` of vLLM. That one changes the list that it is given,
        which an engine within the server's process shares with the server.
    """
    tokens = request.prompt_token_ids
    if tokens is None or len(tokens) < 2:
        return ()
    request.prompt_token_ids = tokens[:-1]
    request._all_token_ids.pop()
    request.num_prompt_tokens -= 1
    request.max_tokens = 1  # another token would be computed over the state
    return (tokens[-1],)
