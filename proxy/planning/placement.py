"""Which nodes compute a prompt and make its tokens, by what is expected of them. It notes until when nodes are crowded, and is pure otherwise.

    PAIR       a prefill node computes the prompt, a decode node makes the tokens; taken where that keeps the targets, or keeps them for more requests
    ON_DECODE  the decode node does both
    ON_PREFILL the prefill node does both

Where prompts queue on the prefill node, or streams are slow on the decode node, both are used as plain servers until that has
been over for a while: the one on which it costs less serves a request whole.
"""

from enum import StrEnum
from typing import Final, NamedTuple

from baton.proxy.nodes.inter_token_time import InterTokenTime
from baton.proxy.nodes.node import SEQUENCE_BYTES, Node
from baton.proxy.nodes.prefill_time import PrefillTime
from baton.proxy.planning.misses import late_first_tokens, slow_answers, slow_beside_streams
from baton.proxy.routing.router import Choice

_IDLE_FIRST_TOKENS: Final = 4.0  # a target that is not set: so many times what an idle node takes
_LEAST_FIRST_TOKENS: Final = 2.0  # the least target, and what predictions were wrong by: a pair as fast as the faster of the two is not late when idle
_MOST_LATE: Final = 0.5  # of pairs, while nothing is known of tokens
_MOST_MISSED: Final = 0.95  # of pairs: where nearly all miss either way, two nodes compute more prompts than one
# For a while after a change both nodes do some of both: pairs end where so many times more miss than on plain servers, and this
# share of all; they begin again where as much fewer miss.
_CHANGE: Final = 1.5
_CHANGE_SHARE: Final = 0.02
_STREAMS_SHARE: Final = 0.8  # of the target of the time between tokens, that streams alone may take in that comparison
# Times the target: later first tokens are late in that comparison, since predictions may be wrong by as much.
_MISSED: Final = 1.25
_HOPELESS: Final = 3.0  # times the target: later first tokens are no pair's where another node may have them
_SEEN: Final = 0.95  # of a steady rate of prompts: from there on unknown tokens are not waited for
_CROWDED_S: Final = 10.0  # after a request that a pair would have served too late or too slowly
_SAFE_SHARE: Final = 0.45  # of the target of the time between tokens: with more, pairs and plain servers are compared
_COMPUTED: Final = 4  # cost of a byte that a node computes, to the request and to each stream there, in bytes that wait
_FULL: Final = 0.9  # of a KV cache: its node takes no new streams soon
_EMPTY: Final = 0.5  # of a KV cache: its node has room for streams


class Placement(StrEnum):
    """The three ways."""

    PAIR = "pair"
    ON_DECODE = "on_decode"
    ON_PREFILL = "on_prefill"


class Targets(NamedTuple):
    """What is aimed at; times of 0 stand for a multiple of what an idle node takes."""

    first_token_s: float = 0.0
    inter_token_s: float = 0.0
    max_prompt_share: float = 1.0  # of the time of a node that makes tokens, that prompts may take there


class Estimate(NamedTuple):
    """What is expected of a prompt on the node that computes it."""

    prompt_bytes: float  # that the node has to compute until its first token, of prompts before it as well
    first_token_s: float | None  # from sending it; None: too little has been seen of the node


def estimate(node: Node, new_bytes: int) -> Estimate:
    """Estimate a prompt that is not on its node yet, of which so many bytes are new to it."""
    prompt_bytes = _waiting_bytes(node) + new_bytes
    return Estimate(prompt_bytes, node.prefill_time.predict_s(prompt_bytes, node.clock()))


def choose_placement(
    chosen_prefill: Choice,
    chosen_decode: Choice,
    targets: Targets,
    *,
    prompt_bytes: int,
    prefill_nodes_share: float,
    decode_may_compute: bool,
    prefill_may_decode: bool,
) -> Placement:
    """Choose how a request is served: by a pair, if that has kept the targets for ten seconds, or too little is known, or about as few requests miss them as on plain servers.

    Else the node with the lower cost serves it, unless the decode node would be late, and later than the prefill node. Where the
    prefill node may not decode, the decode node computes what is late there, and sooner here; where the decode node may not
    compute, the prefill node decodes what is not late while streams are slow there, as long as they are no slower here, or there is no room there
    and there are no more here.

    Args:
        chosen_prefill: the prefill node that would compute the prompt, and how much of that is new to it.
        chosen_decode: the decode node, likewise.
        targets: what is aimed at.
        prompt_bytes: of the whole prompt; one that is in a cache may take as long as another one of its length.
        prefill_nodes_share: of all nodes that the request could have.
        decode_may_compute: whether ON_DECODE is possible.
        prefill_may_decode: whether ON_PREFILL is.
    """
    predicted = _predict(chosen_prefill, chosen_decode, targets, prompt_bytes)
    if predicted is None:
        return Placement.PAIR
    prefill, decode, now_s = chosen_prefill.node, chosen_decode.node, chosen_prefill.node.clock()
    placement = Placement.PAIR
    keeps_targets = _keep_targets(predicted, chosen_prefill, decode, targets, prefill_nodes_share)
    if not keeps_targets or predicted.there_s > _HOPELESS * predicted.target_s:
        may_decode = prefill_may_decode and _has_room(chosen_prefill, _EMPTY, targets, prefill.prefill_time)
        may_compute = decode_may_compute and _has_room(chosen_decode, _FULL, targets, predicted.decode_times)
        placement = _choose_less_work(
            predicted, chosen_prefill, chosen_decode, may_decode=may_decode, may_compute=may_compute
        )
    if placement is Placement.PAIR:
        prefill.late_pairs.add(now_s, counts=predicted.there_s > _MISSED * predicted.target_s)
    elif not keeps_targets and (predicted.is_late or predicted.is_slow):
        decode.crowded_until_s = now_s + _CROWDED_S
        if predicted.is_late:
            prefill.crowded_until_s = decode.crowded_until_s
    return placement


class _Prediction(NamedTuple):
    """What is expected of a request."""

    there_s: float  # until its first token, on the prefill node
    here_s: float  # likewise, on the decode node
    target_s: float  # for that
    decode_times: PrefillTime  # of the decode node, or taken for its own
    is_late: bool  # on the prefill node, with what predictions were wrong by
    is_slow: bool  # the decode node, with one stream more


def _predict(chosen_prefill: Choice, chosen_decode: Choice, targets: Targets, prompt_bytes: int) -> _Prediction | None:
    """Return what is expected; None while too little is known."""
    prefill, decode, now_s = chosen_prefill.node, chosen_decode.node, chosen_prefill.node.clock()
    idle_s, there_s = prefill.prefill_time.predict_s(prompt_bytes, now_s), estimate(*chosen_prefill).first_token_s
    if idle_s is None or there_s is None:
        return None
    own_idle_s, times = decode.prefill_time.predict_s(prompt_bytes, now_s), decode.prefill_time
    if own_idle_s is None:  # it has computed none lately: taken to be as fast as the prefill node, and tried sooner
        own_idle_s, times = idle_s, prefill.prefill_time
    idle_s = min(idle_s, own_idle_s)
    idle_times = _IDLE_FIRST_TOKENS if times is decode.prefill_time else _LEAST_FIRST_TOKENS
    wrong_by = 1 + prefill.prefill_time.spread
    target_s = max(targets.first_token_s or idle_times * idle_s, _LEAST_FIRST_TOKENS * idle_s * wrong_by)
    here_s = times.predict_s(estimate(*chosen_decode).prompt_bytes, now_s) or 0.0
    return _Prediction(there_s, here_s, target_s, times, there_s * wrong_by > target_s, _is_slow(decode, targets))


def _keep_targets(
    predicted: _Prediction, chosen_prefill: Choice, decode: Node, targets: Targets, prefill_nodes_share: float
) -> bool:
    """Whether pairs keep the targets and neither node is crowded, or keep them for about as many requests as plain servers."""
    if _is_full(decode):
        return False
    if not (predicted.is_late or predicted.is_slow or _are_crowded(chosen_prefill.node, decode)):
        return True
    return _do_pairs_miss_less(chosen_prefill, decode, targets, predicted.target_s, prefill_nodes_share)


def _are_crowded(prefill: Node, decode: Node) -> bool:
    """Whether the two are used as plain servers."""
    return prefill.clock() < max(prefill.crowded_until_s, decode.crowded_until_s)


def _choose_less_work(
    predicted: _Prediction, chosen_prefill: Choice, chosen_decode: Choice, *, may_decode: bool, may_compute: bool
) -> Placement:
    """Choose the node that serves a request whole; PAIR if none is better."""
    if may_decode and may_compute:
        if predicted.here_s > max(predicted.there_s, predicted.target_s):
            return Placement.PAIR
        is_less = _cost_bytes(chosen_prefill) <= _cost_bytes(chosen_decode)
        return Placement.ON_PREFILL if is_less else Placement.ON_DECODE
    if may_compute:
        return Placement.ON_DECODE if predicted.is_late and predicted.here_s < predicted.there_s else Placement.PAIR
    is_needed = may_decode and predicted.is_slow and not predicted.is_late
    may_decode = is_needed and _may_add_stream(chosen_prefill.node, chosen_decode.node)
    return Placement.ON_PREFILL if may_decode else Placement.PAIR


def _do_pairs_miss_less(
    chosen_prefill: Choice, decode: Node, targets: Targets, first_token_s: float, prefill_nodes_share: float
) -> bool:
    """Whether about as many requests miss a target if pairs serve all as if all nodes are plain servers; fewer where they are that already.

    On plain servers answers are slow for prompts; with pairs first tokens are late, and answers slow for other streams.
    In the first half minute, while nothing is known of tokens: whether pairs are in time as often as not, if there were three or more.
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
    target_s = times.target_s(targets.inter_token_s, now_s)
    tokens = traffic.seen_tokens_per_s / traffic.seen_share / traffic.prompts_per_s
    plain_miss = slow_answers(prompt_s * traffic.prompts_per_s, prompt_s, tokens, beside_s, target_s)
    late = _late_pairs(chosen_prefill, traffic, first_token_s, prefill_nodes_share)
    each_s = traffic.seen_tokens_per_s / (1 - prefill_nodes_share)
    slow = slow_beside_streams(decode.streams, each_s, alone_s, two_s - alone_s, _STREAMS_SHARE * target_s)
    pairs_miss = late + slow - late * slow
    if _are_crowded(prefill, decode):
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

    Where prompts wait for answers, as a conversation's do, fewer are late than the formula says: what was expected of the pairs of late counts if it is less.
    """
    prefill, new_bytes = chosen_prefill
    times, now_s = prefill.prefill_time, prefill.clock()
    prompt_s = times.predict_s(traffic.bytes_per_s / traffic.prompts_per_s, now_s) or 0.0
    slack_s = _MISSED * first_token_s - (times.predict_s(new_bytes, now_s) or 0.0)
    late = late_first_tokens(prompt_s * traffic.prompts_per_s / prefill_nodes_share, prompt_s, slack_s)
    expected = prefill.late_pairs.at(now_s)
    return late if expected is None else min(late, expected)


def _is_slow(decode: Node, targets: Targets) -> bool:
    """Whether streams on a decode node that gets one more may wait too long for a token; False while too little is known."""
    if _is_full(decode):
        return True
    now_s, times = decode.clock(), decode.inter_token
    return _token_s(decode, times, now_s) > _SAFE_SHARE * times.target_s(targets.inter_token_s, now_s)


def _is_full(decode: Node) -> bool:
    return (decode.kv_usage or 0.0) >= _FULL


def _may_add_stream(prefill: Node, decode: Node) -> bool:
    """Whether the prefill node may decode in a slow node's place: its tokens come no later, beside all prompts; or the decode node is full and has as many streams."""
    if _is_full(decode):
        return prefill.streams <= decode.streams
    now_s, times = decode.clock(), decode.inter_token
    return _token_s(prefill, times, now_s) <= _token_s(decode, times, now_s)


def _token_s(node: Node, times: InterTokenTime, now_s: float) -> float:
    """Return the time between two tokens of one stream more on a node, with the prompts that they wait for; 0 while too little is known."""
    prompt_share = node.prompt_rate.time_share(node.prefill_time.known_per_byte_s(now_s), now_s)
    return (times.predict_s(node.streams + 1, now_s) or 0.0) / (1 - prompt_share)


def _cost_bytes(choice: Choice) -> float:
    """Return what it costs that a node serves a request whole, in bytes of prompt that wait before it.

    What a node has to compute counts several times, and as often for each stream that would wait for it: so conversations
    stay on their nodes, and long prompts go where few streams are.
    """
    node, new_bytes = choice
    return _COMPUTED * new_bytes * (1 + node.streams) + _waiting_bytes(node) + node.requests * SEQUENCE_BYTES


def _waiting_bytes(node: Node) -> float:
    """Return what a node has to compute before a prompt that comes now."""
    return node.load if node.role == "prefill" else node.own_prompt_bytes


def _has_room(choice: Choice, kv_usage: float, targets: Targets, times: PrefillTime) -> bool:
    """Whether a node may get both a prompt and its stream; a share of 1 is no bound, as on a plain server."""
    node, new_bytes = choice
    if (node.kv_usage or 0.0) >= kv_usage:
        return False
    if targets.max_prompt_share >= 1:
        return True
    now_s = node.clock()
    prompt_s = max(times.predict_s(new_bytes, now_s) or 0.0, times.limit_s(new_bytes))
    return node.prompt_share.at(now_s, more=prompt_s) <= targets.max_prompt_share
