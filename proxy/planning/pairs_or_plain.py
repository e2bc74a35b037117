"""Whether about as many requests miss a target where pairs serve all as where all nodes are plain servers: both by formulas (`misses.py`). Pure."""

from typing import Final, NamedTuple

from baton.proxy.nodes.node import Node
from baton.proxy.planning.misses import late_first_tokens, slow_answers, slow_beside_streams
from baton.proxy.routing.router import Choice

# Times the target: later first tokens are late in the comparison, since predictions may be wrong by as much.
MISSED: Final = 1.25
# For a while after a change both nodes do some of both: pairs end where so many times more miss than on plain servers,
# and this share of all; they begin again where as much fewer miss.
_CHANGE: Final = 1.5
_CHANGE_SHARE: Final = 0.02
_MOST_MISSED: Final = 0.95  # of pairs: where nearly all miss either way, two nodes compute more prompts than one
_MOST_LATE: Final = 0.5  # of pairs, while nothing is known of tokens
_STREAMS_SHARE: Final = 0.8  # of the target of the time between tokens, that streams alone may take in that comparison
_SEEN: Final = 0.95  # of a steady rate of prompts: from there on unknown tokens are not waited for


def are_pairs_as_good(
    chosen_prefill: Choice,
    decode: Node,
    *,
    first_token_s: float,
    inter_token_s: float,
    prefill_nodes_share: float,
    is_plain: bool,
) -> bool:
    """Whether about as many requests miss a target if pairs serve all as if all nodes are plain servers.

    On plain servers answers are slow for prompts; with pairs first tokens are late, and answers slow for other streams.
    In the first half minute, while nothing is known of tokens: whether pairs are in time as often as not, if there were
    three or more.

    `first_token_s` and `inter_token_s` are the targets, `prefill_nodes_share` is of all nodes. `is_plain`: the nodes
    are plain servers now; pairs have to miss fewer then.
    """
    prefill, now_s, times = chosen_prefill.node, decode.clock(), decode.inter_token
    traffic = _sum_traffic(prefill, decode, prefill_nodes_share)
    if not traffic.prompts_per_s:
        return False
    alone_s, two_s, beside_s = (times.predict_s(streams, now_s) for streams in (1, 2, traffic.streams + 1))
    if not (traffic.seen_tokens_per_s and alone_s and two_s and beside_s):
        late = prefill.late_pairs.at(now_s)
        return traffic.seen_share < _SEEN and (late is None or late <= _MOST_LATE)
    # Of a stream's time: what all prompts of one step have in common it waits for anyway.
    prompt_s = traffic.bytes_per_s / traffic.prompts_per_s * prefill.prefill_time.per_byte_s
    if not prompt_s:
        return False
    tokens = traffic.seen_tokens_per_s / traffic.seen_share / traffic.prompts_per_s
    plain_miss = slow_answers(prompt_s * traffic.prompts_per_s, prompt_s, tokens, beside_s, inter_token_s)
    late = _late_pairs(chosen_prefill, traffic, first_token_s, prefill_nodes_share)
    each_s = traffic.seen_tokens_per_s / (1 - prefill_nodes_share)
    slow = slow_beside_streams(decode.streams, each_s, alone_s, two_s - alone_s, _STREAMS_SHARE * inter_token_s)
    pairs_miss = late + slow - late * slow
    if is_plain:
        return pairs_miss <= min(_MOST_MISSED, plain_miss - _CHANGE_SHARE)
    return pairs_miss <= min(_MOST_MISSED, _CHANGE * plain_miss + _CHANGE_SHARE)


class _Traffic(NamedTuple):
    """What comes for each node, of both roles; prompts as many as they would be if they went on as they began."""

    prompts_per_s: float
    bytes_per_s: float
    seen_tokens_per_s: float
    streams: float
    seen_share: float  # of a steady rate of prompts, and of their tokens


def _sum_traffic(prefill: Node, decode: Node, prefill_nodes_share: float) -> _Traffic:
    now_s, shares = decode.clock(), ((prefill, prefill_nodes_share), (decode, 1 - prefill_nodes_share))
    seen_share = max(node.prompt_rate.seen_share(now_s) for node, _ in shares)
    prompts = [(share * node.others.factor / seen_share, node.prompt_rate) for node, share in shares]
    return _Traffic(
        sum(share * rate.prompts_per_s(now_s) for share, rate in prompts),
        sum(share * rate.bytes_per_s(now_s) for share, rate in prompts),
        sum(share * node.inter_token.tokens_per_s(now_s) for node, share in shares),
        sum(share * node.streams for node, share in shares),
        seen_share,
    )


def _late_pairs(chosen_prefill: Choice, traffic: _Traffic, first_token_s: float, prefill_nodes_share: float) -> float:
    """Return the share of first tokens that come too late if prefill nodes compute all prompts.

    Where prompts wait for answers, as a conversation's do, fewer are late than the formula says: what was expected of
    the pairs of late counts if it is less.
    """
    prefill = chosen_prefill.node
    times, now_s = prefill.prefill_time, prefill.clock()
    prompt_s = times.predict_s(traffic.bytes_per_s / traffic.prompts_per_s, now_s) or 0.0
    slack_s = MISSED * first_token_s - (times.predict_s(chosen_prefill.work_bytes, now_s) or 0.0)
    late = late_first_tokens(prompt_s * traffic.prompts_per_s / prefill_nodes_share, prompt_s, slack_s)
    expected = prefill.late_pairs.at(now_s)
    return late if expected is None else min(late, expected)
