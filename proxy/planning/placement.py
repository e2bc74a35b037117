"""Which nodes compute a prompt and make its tokens, by what is expected of each way. Pure.

    PAIR       a prefill node computes the prompt, a decode node makes the tokens; taken where it keeps both targets
    ON_DECODE  the decode node does both: where prompts queue on the prefill nodes
    ON_PREFILL the prefill node does both: where the decode node has so many streams that all of them are slow

What is compared is how many requests each way is expected to make miss the targets, of the time to the first token and of
the time between tokens: the request itself, those that come while its node is late, and the streams that wait on the decode
node while it computes a prompt. Where no way is expected to keep both targets, the two nodes are used as plain servers.
"""

from enum import StrEnum
from typing import Final, NamedTuple

from baton.proxy.nodes.node import SEQUENCE_BYTES, Node
from baton.proxy.routing.router import Choice

# Predictions err: below the first share of its target a time is taken to be kept, above the second to be missed.
_KEPT: Final = 0.4
_MISSED: Final = 1.6
_PER_TARGET: Final = 0.1  # counted for each further target beyond that: of two ways that miss, the earlier one
_OVERLOADED: Final = 1.0  # requests that are expected to miss a target, whichever way is taken
_BETTER: Final = 0.1  # by which another way must be better, or requests would swing to and fro between the ways
_IDLE_FIRST_TOKENS: Final = 4.0  # a target that is not set: so many times what an idle node takes
_MOST_SHARE: Final = 0.9  # of a node's time for prompts, that its tokens are taken to wait for
_MOST_TO_COME: Final = 0.95  # of a node's time, that prompts to come are expected to take
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
    max_prompt_share: float = 1.0  # of a node's time, that prompts may take while it has streams


class Estimate(NamedTuple):
    """What is expected of a prompt on the node that computes it."""

    prompt_bytes: float  # that the node has to compute until its first token, of prompts before it as well
    first_token_s: float | None  # from sending it; None: too little has been seen of the node


def estimate(node: Node, new_bytes: int) -> Estimate:
    """Estimate a prompt that is not on its node yet, of which so many bytes are new to it."""
    before = node.load if node.role == "prefill" else node.own_prompt_bytes
    return Estimate(before + new_bytes, node.prefill_time.predict_s(before + new_bytes, node.clock()))


def choose_placement(
    chosen_prefill: Choice,
    chosen_decode: Choice,
    targets: Targets,
    *,
    prompt_bytes: int,
    decode_may_compute: bool,
    prefill_may_decode: bool,
) -> Placement:
    """Choose how a request is served; without measurements, by a pair.

    Args:
        chosen_prefill: the prefill node that would compute the prompt, and how much of that is new to it.
        chosen_decode: the decode node, likewise.
        targets: what is aimed at.
        prompt_bytes: of the whole prompt; a prompt that is in a cache may take as long as another one of its length.
        decode_may_compute: whether ON_DECODE is possible.
        prefill_may_decode: whether ON_PREFILL is.
    """
    prefill, decode, now_s = chosen_prefill.node, chosen_decode.node, chosen_prefill.node.clock()
    alone_s, whole_s = (
        prefill.prefill_time.predict_s(size, now_s) for size in (chosen_prefill.new_bytes, prompt_bytes)
    )
    there_s = estimate(*chosen_prefill).first_token_s
    if alone_s is None or whole_s is None or there_s is None:
        return Placement.PAIR
    first_target_s = targets.first_token_s or _IDLE_FIRST_TOKENS * whole_s
    late_there = _late(prefill, there_s, first_target_s, alone_s, now_s)
    slow_there = _slowness(decode, decode, targets, now_s) + _stall(decode, there_s, targets, now_s)
    expected = {Placement.PAIR: max(late_there, _missed(slow_there))}
    if expected[Placement.PAIR] == 0.0:
        return Placement.PAIR
    if decode_may_compute:
        expected[Placement.ON_DECODE] = _BETTER + _on_decode(prefill, chosen_decode, first_target_s, targets, now_s)
    if prefill_may_decode and _has_room_for_streams(prefill, targets, alone_s, now_s):
        slow = _missed(_slowness(prefill, decode, targets, now_s, prompt_s=alone_s))
        expected[Placement.ON_PREFILL] = _BETTER + max(late_there, slow)
    best = min(expected, key=expected.__getitem__)
    if expected[best] >= _OVERLOADED and decode_may_compute and prefill_may_decode and targets.max_prompt_share >= 1:
        return _as_plain_servers(chosen_prefill, chosen_decode) or best
    return best


def _as_plain_servers(chosen_prefill: Choice, chosen_decode: Choice) -> Placement | None:
    """Choose the node that has more of the prompt, of two alike the one with less to do, to serve the request whole; None if a cache is too full.

    Where every way is expected to miss a target it counts most that no node computes again what the other one has, and that both take part.
    """
    prefill, decode = chosen_prefill.node, chosen_decode.node
    if (prefill.kv_usage or 0.0) > _EMPTY or (decode.kv_usage or 0.0) >= _FULL:
        return None
    there, here = float(chosen_prefill.new_bytes), float(chosen_decode.new_bytes)
    if there == here:
        there, here = (
            prefill.load + prefill.requests * SEQUENCE_BYTES,
            decode.own_prompt_bytes + decode.requests * SEQUENCE_BYTES,
        )
    return Placement.ON_PREFILL if there <= here else Placement.ON_DECODE


def _on_decode(prefill: Node, chosen_decode: Choice, first_target_s: float, targets: Targets, now_s: float) -> float:
    """Return how many requests are expected to miss; infinity if prompts would take more of the node's time than they may."""
    node, measured = chosen_decode.node, chosen_decode.node.prefill_time
    alone_s = measured.predict_s(chosen_decode.new_bytes, now_s)
    if alone_s is None:  # it has computed none lately: its time is taken for the prefill node's
        measured = prefill.prefill_time
        alone_s = measured.predict_s(chosen_decode.new_bytes, now_s)
    here_s = measured.predict_s(node.own_prompt_bytes + chosen_decode.new_bytes, now_s)
    if alone_s is None or here_s is None:
        return float("inf")
    prompt_s = max(alone_s, measured.limit_s(chosen_decode.new_bytes))
    if node.streams and _exceeds_share(node, prompt_s, targets, now_s):
        return float("inf")
    slowness = _slowness(node, node, targets, now_s)
    own = max(_late(node, here_s, first_target_s, alone_s, now_s), _missed(slowness))
    return own + _missed_by_stall(node, prompt_s, slowness, targets, now_s)


def _late(node: Node, first_token_s: float, target_s: float, prompt_s: float, now_s: float) -> float:
    """Return how many first tokens are expected to miss the target: the request's, and those of requests to come.

    A queue that is too long stays so for longer by the prompt's time ÷ the share of the node's time that prompts do not take. What comes until then is late too.
    """
    if not target_s:
        return 0.0
    share = min(_MOST_TO_COME, node.prompt_share.at(now_s, more=prompt_s))
    return _missed(first_token_s / target_s) / (1 - share)


def _stall(decode: Node, begins_s: float, targets: Targets, now_s: float) -> float:
    """Return how much a stream that begins then waits for prompts that the decode node computes itself, by token ÷ the target."""
    target_s = decode.inter_token.target_s(targets.inter_token_s, now_s)
    busy_s = decode.prefill_time.predict_s(decode.own_prompt_bytes, now_s) if decode.own_prompt_bytes else None
    if busy_s is None or not target_s:
        return 0.0
    return max(0.0, busy_s - begins_s) / decode.inter_token.per_answer / target_s


def _missed_by_stall(node: Node, prompt_s: float, slowness: float, targets: Targets, now_s: float) -> float:
    """Return how many of a node's streams are expected to miss since they wait for a prompt of that time.

    A stream waits once, which its mean time between tokens spreads over all its tokens. Streams that begin in that time
    wait as well: by Little's law as many per second as there are, over the time that one takes.
    """
    times = node.inter_token
    inter_token_s, target_s = times.predict_s(node.streams, now_s), times.target_s(targets.inter_token_s, now_s)
    if not inter_token_s or not target_s:
        return 0.0
    waiting = node.streams * (1 + prompt_s / (times.per_answer * inter_token_s))
    return waiting * (_missed(slowness + prompt_s / times.per_answer / target_s) - _missed(slowness))


def _has_room_for_streams(prefill: Node, targets: Targets, prompt_s: float, now_s: float) -> bool:
    return (
        prefill.prompt_share.at(now_s, more=prompt_s) <= targets.max_prompt_share
        and (prefill.kv_usage or 0.0) <= _EMPTY
    )


def _exceeds_share(node: Node, prompt_s: float, targets: Targets, now_s: float) -> bool:
    """Whether prompts would take more of a node's time than they may; a share of 1 is no bound, as on a plain server."""
    return targets.max_prompt_share < 1 and node.prompt_share.at(now_s, more=prompt_s) > targets.max_prompt_share


def _slowness(node: Node, alike: Node, targets: Targets, now_s: float, *, prompt_s: float = 0.0) -> float:
    """Return the time between tokens on a node with one more stream, and a prompt of that time, ÷ the target.

    What is not known of the node is taken to be as on the one that is `alike`; unknown of both, it counts as kept. A full
    cache counts as twice the target.
    """
    known = node.inter_token if node.inter_token.predict_s(1, now_s) is not None else alike.inter_token
    busy_s, target_s = known.predict_s(node.streams + 1, now_s), known.target_s(targets.inter_token_s, now_s)
    slow = 0.0
    if busy_s is not None and target_s:
        slow = busy_s / (1 - min(_MOST_SHARE, node.prompt_share.at(now_s, more=prompt_s))) / target_s
    return max(slow, 2.0) if (node.kv_usage or 0.0) >= _FULL else slow


def _missed(ratio: float) -> float:
    """Return how likely a time misses its target, of the predicted time ÷ the target; beyond 1 by how much it does."""
    return min(1.0, max(0.0, (ratio - _KEPT) / (_MISSED - _KEPT))) + _PER_TARGET * max(0.0, ratio - _MISSED)
