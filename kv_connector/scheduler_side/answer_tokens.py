"""Transfers of an answer's KV: of a prompt and the tokens that followed it.

The source's engine takes the tokens for a part of the prompt, and finds most of them in its prefix cache. The
destination starts with them and receives as much, but for the last one: its first step computes that.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from baton.kv_connector.scheduler_side.client_tokens import objection as cannot_start
from baton.kv_connector.scheduler_side.client_tokens import start_of

if TYPE_CHECKING:
    from vllm.v1.core.block_pool import BlockPool
    from vllm.v1.request import Request

    from baton.contracts.kv_transfer import TransferParams


def sent_tokens(request: "Request", params: "TransferParams") -> Sequence[int]:
    """Return the tokens of a request's choice whose KV is part of its transfer."""
    return start_of(request, params)[:-1] if params.role == "prefill" or params.start_sent else ()


class ModelLimits(NamedTuple):
    """What the model of a source of answers' KV can take."""

    vocab_size: int
    max_model_len: int  # tokens


def objection(request: "Request", tokens: Sequence[int], limits: ModelLimits | None) -> str:
    """Return why a prompt on the source cannot be followed by these tokens; "" if it can.

    `limits`: None if the node sends prompts alone.
    """
    if limits is None:
        return "this prefill node sends the KV of prompts alone: transfer.both_ways is off"
    if request.num_prompt_tokens + len(tokens) >= limits.max_model_len:
        return "the answer's tokens do not fit behind its prompt"
    return cannot_start(request, tokens, limits.vocab_size)


def lengthen(request: "Request", tokens: Sequence[int]) -> None:
    """Put tokens behind the prompt of a request that has not been scheduled. The server above goes on with the prompt that it has."""
    request.prompt_token_ids = [*(request.prompt_token_ids or ()), *tokens]
    request._all_token_ids.extend(tokens)
    request.num_prompt_tokens += len(tokens)
    request.max_tokens = 1
    request.update_block_hashes()


def has_kv(request: "Request", pool: "BlockPool") -> bool:
    """Whether the prefix cache of an engine with one KV cache group has a request's KV.

    vLLM reuses its last blocks first; the last two may still be written, or may not be in the cache yet.
    """
    if request.skip_reading_prefix_cache:
        return False
    last = len(request.block_hashes) - 3
    return last < 0 or pool.get_cached_block(request.block_hashes[last], [0]) is not None
