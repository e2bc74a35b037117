"""Which nodes compute a prompt and make its tokens, by what is expected of them. It notes until when nodes are crowded, and is pure otherwise.

    PAIR       a prefill node computes the prompt, a decode node makes the tokens; taken where that keeps the targets, or keeps them for more requests
    ON_DECODE  the decode node does both
    ON_PREFILL the prefill node does both

Where prompts queue on the prefill node, or streams are slow on the decode node, both are used as plain servers until
that has been over for a while: the one on which it costs less serves a request whole.
"""

from enum import StrEnum
from typing import Final, NamedTuple

from baton.proxy.nodes.cached_cost import PromptParts
from baton.proxy.nodes.inter_token_time import InterTokenTime
from baton.proxy.nodes.node import SEQUENCE_BYTES, Node
from baton.proxy.nodes.prefill_time import PrefillTime
from baton.proxy.planning.pairs_or_plain import MISSED, are_pairs_as_good
from baton.proxy.routing.router import Choice

_IDLE_FIRST_TOKENS: Final = 4.0  # a target that is not set: so many times what an idle node takes
# The least target, in times that an idle node takes and predictions were wrong by: where both nodes are equally fast an
# idle pair is not late.
_LEAST_FIRST_TOKENS: Final = 2.0
_HOPELESS: Final = 3.0  # times the target: later first tokens are no pair's where another node may have them
_CROWDED_S: Final = 10.0  # after a request that a pair would have served too late or too slowly
_SAFE_SHARE: Final = 0.45  # of the target of the time between tokens: with more, pairs and plain servers are compared
_COMPUTED: Final = 4  # cost of a byte that a node computes, to the request and to each stream there, in bytes that wait
_MAX_QUEUE: Final = 0.25  # of its own work, that may wait before a prompt that tells what its cached part costs
_FULL: Final = 0.9  # of a KV cache: its node takes no new streams soon
_EMPTY: Final = 0.5  # of a KV cache: its node has room for streams


class Placement(StrEnum):
    """Which nodes serve a request: a pair, or one node alone."""

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
    unqueued: PromptParts | None = None  # its parts, if little waits before it


def estimate(node: Node, work_bytes: int, parts: PromptParts | None = None) -> Estimate:
    """Estimate a prompt that is not on its node yet, and takes as long as so many bytes that are computed."""
    waiting_bytes = _waiting_bytes(node)
    prompt_bytes = waiting_bytes + work_bytes
    unqueued = parts if waiting_bytes <= _MAX_QUEUE * work_bytes else None
    return Estimate(prompt_bytes, node.prefill_time.predict_s(prompt_bytes, node.clock()), unqueued)


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
    """Choose how a request is served.

    - Too little is known; or pairs have kept the targets for `_CROWDED_S`; or they miss them about as seldom as plain
      servers would: PAIR.
    - Either node may serve it: the one with the lower cost; PAIR if the decode node would be late, and later than the
      prefill node.
    - Only the decode node may: ON_DECODE if the prefill node would be late and the decode node sooner, else PAIR.
    - Only the prefill node may: ON_PREFILL if it is not late while streams are slow on the decode node, and its own are
      no slower, or the decode node's KV cache is full and it has no more streams; else PAIR.

    `prompt_bytes` is the whole prompt: one that is in a cache may take as long as another one of its length.
    `prefill_nodes_share` is of all nodes that the request could have; ON_DECODE is possible if `decode_may_compute`,
    ON_PREFILL if `prefill_may_decode`.
    """
    predicted = _predict(chosen_prefill, chosen_decode, targets, prompt_bytes)
    if predicted is None:
        return Placement.PAIR
    prefill, decode, now_s = chosen_prefill.node, chosen_decode.node, chosen_prefill.node.clock()
    placement = Placement.PAIR
    keeps_targets = _keep_targets(predicted, chosen_prefill, decode, targets, prefill_nodes_share)
    if not keeps_targets or predicted.on_prefill_s > _HOPELESS * predicted.target_s:
        may_decode = prefill_may_decode and _has_room(chosen_prefill, _EMPTY, targets, prefill.prefill_time)
        may_compute = decode_may_compute and _has_room(chosen_decode, _FULL, targets, predicted.decode_times)
        placement = _choose_less_work(
            predicted, chosen_prefill, chosen_decode, may_decode=may_decode, may_compute=may_compute
        )
    if placement is Placement.PAIR:
        prefill.late_pairs.add(now_s, counts=predicted.on_prefill_s > MISSED * predicted.target_s)
    elif not keeps_targets and (predicted.is_late or predicted.is_slow):
        decode.crowded_until_s = now_s + _CROWDED_S
        if predicted.is_late:
            prefill.crowded_until_s = decode.crowded_until_s
    return placement


class _Prediction(NamedTuple):
    """What is expected of a request."""

    on_prefill_s: float  # until its first token, on the prefill node
    on_decode_s: float  # likewise, on the decode node
    target_s: float  # for that
    decode_times: PrefillTime  # of the decode node, or taken for its own
    is_late: bool  # on the prefill node, with what predictions were wrong by
    is_slow: bool  # the decode node, with one stream more


def _predict(chosen_prefill: Choice, chosen_decode: Choice, targets: Targets, prompt_bytes: int) -> _Prediction | None:
    """Return what is expected; None while too little is known."""
    prefill, decode, now_s = chosen_prefill.node, chosen_decode.node, chosen_prefill.node.clock()
    idle_s = prefill.prefill_time.predict_s(prompt_bytes, now_s)
    on_prefill_s = estimate(prefill, chosen_prefill.work_bytes).first_token_s
    if idle_s is None or on_prefill_s is None:
        return None
    own_idle_s, times = decode.prefill_time.predict_s(prompt_bytes, now_s), decode.prefill_time
    if own_idle_s is None:  # it has computed none lately: taken to be as fast as the prefill node, and tried sooner
        own_idle_s, times = idle_s, prefill.prefill_time
    idle_s = min(idle_s, own_idle_s)
    idle_times = _IDLE_FIRST_TOKENS if times is decode.prefill_time else _LEAST_FIRST_TOKENS
    wrong_by = 1 + prefill.prefill_time.spread
    target_s = max(targets.first_token_s or idle_times * idle_s, _LEAST_FIRST_TOKENS * idle_s * wrong_by)
    on_decode_s = times.predict_s(estimate(decode, chosen_decode.work_bytes).prompt_bytes, now_s) or 0.0
    return _Prediction(
        on_prefill_s, on_decode_s, target_s, times, on_prefill_s * wrong_by > target_s, _is_slow(decode, targets)
    )


def _keep_targets(
    predicted: _Prediction, chosen_prefill: Choice, decode: Node, targets: Targets, prefill_nodes_share: float
) -> bool:
    """Whether pairs keep the targets and neither node is crowded, or keep them for about as many requests as plain servers."""
    if _is_full(decode):
        return False
    if not (predicted.is_late or predicted.is_slow or _are_crowded(chosen_prefill.node, decode)):
        return True
    return are_pairs_as_good(
        chosen_prefill,
        decode,
        first_token_s=predicted.target_s,
        inter_token_s=decode.inter_token.target_s(targets.inter_token_s, decode.clock()),
        prefill_nodes_share=prefill_nodes_share,
        is_plain=_are_crowded(chosen_prefill.node, decode),
    )


def _are_crowded(prefill: Node, decode: Node) -> bool:
    """Whether the two are used as plain servers."""
    return prefill.clock() < max(prefill.crowded_until_s, decode.crowded_until_s)


def _choose_less_work(
    predicted: _Prediction, chosen_prefill: Choice, chosen_decode: Choice, *, may_decode: bool, may_compute: bool
) -> Placement:
    """Choose the node that serves a request whole; PAIR if none is better."""
    if may_decode and may_compute:
        if predicted.on_decode_s > max(predicted.on_prefill_s, predicted.target_s):
            return Placement.PAIR
        is_less = _cost_bytes(chosen_prefill) <= _cost_bytes(chosen_decode)
        return Placement.ON_PREFILL if is_less else Placement.ON_DECODE
    if may_compute:
        is_sooner = predicted.is_late and predicted.on_decode_s < predicted.on_prefill_s
        return Placement.ON_DECODE if is_sooner else Placement.PAIR
    is_needed = may_decode and predicted.is_slow and not predicted.is_late
    may_decode = is_needed and _may_add_stream(chosen_prefill.node, chosen_decode.node)
    return Placement.ON_PREFILL if may_decode else Placement.PAIR


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

    What a node has to compute counts several times, and as often for each stream that would wait for it: so
    conversations stay on their nodes, and long prompts go where few streams are.
    """
    node = choice.node
    return _COMPUTED * choice.work_bytes * (1 + node.streams) + _waiting_bytes(node) + node.requests * SEQUENCE_BYTES


def _waiting_bytes(node: Node) -> float:
    """Return what a node has to compute before a prompt that comes now."""
    return node.load if node.role == "prefill" else node.own_prompt_bytes


def _has_room(choice: Choice, kv_usage: float, targets: Targets, times: PrefillTime) -> bool:
    """Whether a node may get both a prompt and its stream; a share of 1 is no bound, as on a plain server."""
    node, work_bytes = choice.node, choice.work_bytes
    if (node.kv_usage or 0.0) >= kv_usage:
        return False
    if targets.max_prompt_share >= 1:
        return True
    now_s = node.clock()
    prompt_s = max(times.predict_s(work_bytes, now_s) or 0.0, times.limit_s(work_bytes))
    return node.prompt_share.at(now_s, more=prompt_s) <= targets.max_prompt_share
