"""One request's token in the output of vLLM's model runner."""

from typing import TYPE_CHECKING

from baton.kv_connector.protocol.messages import MAX_TOKEN, SampledToken

if TYPE_CHECKING:
    from vllm.v1.outputs import ModelRunnerOutput


def has_token(output: "ModelRunnerOutput", request_id: str) -> bool:
    """Return whether a step has sampled a token for a request: no chunk of a prompt but the last one's does."""
    row = output.req_id_to_index.get(request_id)
    return row is not None and bool(output.sampled_token_ids) and len(output.sampled_token_ids[row]) > 0


def sampled_token(output: "ModelRunnerOutput", request_id: str, logprobs: int) -> SampledToken | None:
    """Return the first token that a step has sampled for a request; None if it cannot be sent.

    `logprobs`: how many to take along, the token's own included; 0: none.
    """
    row = output.req_id_to_index[request_id]
    token = SampledToken(id=int(output.sampled_token_ids[row][0]))
    if logprobs:
        if output.logprobs is None:
            return None
        lists = output.logprobs.slice_request(row, 1)
        token = SampledToken(
            id=token.id,
            logprob_ids=tuple(map(int, lists.logprob_token_ids[0][:logprobs])),
            logprobs=tuple(map(float, lists.logprobs[0][:logprobs])),
            rank=int(lists.sampled_token_ranks[0]),
        )
    numbers = (token.id, token.rank, *token.logprob_ids)
    return token if min(numbers) >= 0 and max(numbers) <= MAX_TOKEN else None
