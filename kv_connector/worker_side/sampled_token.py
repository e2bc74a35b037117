"""One request's token in the output of vLLM's model runner."""

from typing import TYPE_CHECKING

from baton.kv_connector.protocol.messages import SampledToken

if TYPE_CHECKING:
    from vllm.v1.outputs import ModelRunnerOutput


def sampled_token(output: "ModelRunnerOutput", request_id: str, logprobs: int) -> SampledToken | None:
    """Return the first token that a step has sampled for a request; None if it has sampled none.

    Args:
        output: of one step, its tokens on the host.
        request_id: vLLM's.
        logprobs: how many to take along, the token's own included; 0: none.
    """
    row = output.req_id_to_index.get(request_id)
    if row is None or not output.sampled_token_ids or not len(output.sampled_token_ids[row]):
        return None
    token = int(output.sampled_token_ids[row][0])
    if not logprobs or output.logprobs is None:
        return SampledToken(id=token)
    lists = output.logprobs.slice_request(row, 1)
    return SampledToken(
        id=token,
        logprob_ids=tuple(map(int, lists.logprob_token_ids[0][:logprobs])),
        logprobs=tuple(map(float, lists.logprobs[0][:logprobs])),
        rank=int(lists.sampled_token_ranks[0]),
    )
