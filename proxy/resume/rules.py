"""Which streams that break go on on another node, and why others do not. Pure; see docs/failover.md.

Another node is asked the same request, which *starts with* the tokens that the answer has: they are output for its
sampler, grammar, parsers and usage, as they were on the first node. What the client has of its stream is left out.
"""

from enum import StrEnum
from typing import Self

from baton.proxy.request.eligibility import wants_prompt_logprobs
from baton.proxy.request.endpoints import RESPONSES
from baton.proxy.request.fields import is_on, is_one, is_set
from baton.proxy.request.parse import ClientRequest
from baton.proxy.request.single_node import has_built_in_tools, wants_logprobs


class NotResumableReason(StrEnum):
    """Why a stream is not resumed: a label of `baton_streams_not_resumed_total`, and the sentence that the client reads."""

    sentence: str

    def __new__(cls, label: str, sentence: str) -> Self:
        made = str.__new__(cls, label)
        made._value_, made.sentence = label, sentence
        return made

    OFF = "off", "resuming is switched off"
    BEAMS = "beams", "it is chosen among several candidates, of which its tokens say nothing"
    PROMPT_LOGPROBS = "prompt_logprobs", "it holds log probabilities of the prompt"
    EMBEDDINGS = "embeddings", "its prompt is given as embeddings"
    LOGPROBS = "logprobs", "a response's log probabilities do not say of which tokens they are"
    ON_NODE = "on_node", "its node calls tools itself, or goes on without a client"
    TOO_LONG = "too_long", "it is too long to be remembered"
    NO_TOKEN_IDS = "no_token_ids", "the node has not named the answer's tokens"
    DIFFERS = "differs", "another node answered differently"
    RETRY_DENIED = "retry_denied", "no further attempt is allowed"
    NO_NODE = "no_node", "no other node could go on with it"


class CannotFollowError(Exception):
    """There is no exact way to go on."""

    def __init__(self, reason: NotResumableReason) -> None:
        super().__init__(reason.sentence)
        self.reason = reason


def why_not_resumed(request: ClientRequest, *, resumes: bool) -> NotResumableReason | None:
    """Say why an answer does not go on on another node; None if it does."""
    if not resumes or not is_on(request.fields, "stream"):
        return NotResumableReason.OFF
    return _why_not_started(request)


def why_not_kept(request: ClientRequest, *, resumes: bool) -> NotResumableReason | None:
    """Say the same of an answer that is not streamed, which is tried from the start then."""
    fields = request.fields
    if not resumes or is_on(fields, "stream"):
        return NotResumableReason.OFF
    # The log probabilities of tokens that it starts with are not known to a node.
    if is_on(fields, "logprobs") or is_set(fields, "top_logprobs"):
        return NotResumableReason.LOGPROBS
    return _why_not_started(request)


def _why_not_started(request: ClientRequest) -> NotResumableReason | None:
    fields = request.fields
    if is_on(fields, "use_beam_search") or (is_set(fields, "best_of") and not is_one(fields, "best_of")):
        return NotResumableReason.BEAMS
    if wants_prompt_logprobs(fields):
        return NotResumableReason.PROMPT_LOGPROBS
    if request.endpoint == RESPONSES and wants_logprobs(request):
        return NotResumableReason.LOGPROBS
    if request.endpoint == RESPONSES and (has_built_in_tools(fields) or is_on(fields, "background")):
        return NotResumableReason.ON_NODE
    return NotResumableReason.EMBEDDINGS if is_set(fields, "prompt_embeds") else None
