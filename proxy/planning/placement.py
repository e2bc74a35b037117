"""Which nodes compute a prompt and make its tokens, by what is expected of each way. Pure.

    PAIR       a prefill node computes the prompt, a decode node makes the tokens; taken where it keeps both targets
    ON_DECODE  the decode node does both: where prompts queue on the prefill nodes
    ON_PREFILL the prefill node does both: where the decode node has so many streams that all of them are slow

What is compared is how far a way exceeds the targets, of the time to the first token and of the time between tokens,
whichever is worse. The others' streams on the same node are slowed as much as the request's own, so they count with it.
"""

from enum import StrEnum
from typing import Final, NamedTuple

from baton.proxy.nodes.node import Node
from baton.proxy.routing.router import Choice

# Another way must be better by a fifth: predictions err, and requests would swing to and fro between the ways.
_BETTER: Final = 0.8
# Targets that are not set: so many times what an idle node takes.
_IDLE_FIRST_TOKENS: Final = 4.0
_IDLE_INTER_TOKENS: Final = 3.0
_MOST_SHARE: Final = 0.9  # of a node's time for prompts, that its tokens are taken to wait for
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
    max_prompt_share: float = 0.25  # of a node's time, that prompts may take while it has streams


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
    now_s = chosen_prefill.node.clock()
    alone_s, whole_s = (
        chosen_prefill.node.prefill_time.predict_s(size, now_s) for size in (chosen_prefill.new_bytes, prompt_bytes)
    )
    there_s = estimate(*chosen_prefill).first_token_s
    if alone_s is None or whole_s is None or there_s is None:
        return Placement.PAIR
    first_target_s = targets.first_token_s or _IDLE_FIRST_TOKENS * whole_s
    late = there_s / first_target_s if first_target_s else 0.0
    paired = max(late, _slowness(chosen_decode.node, chosen_decode.node, targets, 0.0, now_s))
    if paired <= 1.0:
        return Placement.PAIR
    best, placement = paired * _BETTER, Placement.PAIR
    if (
        decode_may_compute
        and (on_decode := _on_decode(chosen_prefill.node, chosen_decode, first_target_s, targets, now_s)) < best
    ):
        best, placement = on_decode, Placement.ON_DECODE
    if prefill_may_decode and _has_room_for_streams(chosen_prefill.node, targets, alone_s, now_s):
        on_prefill = max(late, _slowness(chosen_prefill.node, chosen_decode.node, targets, alone_s, now_s))
        if on_prefill < best:
            placement = Placement.ON_PREFILL
    return placement


def _on_decode(
    chosen_prefill: Node, chosen_decode: Choice, first_target_s: float, targets: Targets, now_s: float
) -> float:
    """Return how far that exceeds the targets; infinity if prompts would take more of the node's time than they may."""
    node, measured = chosen_decode.node, chosen_decode.node.prefill_time
    alone_s = measured.predict_s(chosen_decode.new_bytes, now_s)
    if alone_s is None:  # it has computed none lately: its time is taken for the prefill node's
        measured = chosen_prefill.prefill_time
        alone_s = measured.predict_s(chosen_decode.new_bytes, now_s)
    here_s = measured.predict_s(node.own_prompt_bytes + chosen_decode.new_bytes, now_s)
    if alone_s is None or here_s is None:
        return float("inf")
    prompt_s = max(alone_s, measured.limit_s(chosen_decode.new_bytes))
    has_streams = node.requests + node.others.requests > 0
    if has_streams and node.prompt_share.at(now_s, more_s=prompt_s) > targets.max_prompt_share:
        return float("inf")
    return max(here_s / first_target_s if first_target_s else 0.0, _slowness(node, node, targets, prompt_s, now_s))


def _has_room_for_streams(prefill: Node, targets: Targets, prompt_s: float, now_s: float) -> bool:
    share = prefill.prompt_share.at(now_s, more_s=prompt_s)
    return share <= targets.max_prompt_share and (prefill.kv_usage or 0.0) <= _EMPTY


def _slowness(node: Node, alike: Node, targets: Targets, prompt_s: float, now_s: float) -> float:
    """Return the time between tokens on a node with one more stream, and a prompt of that time, ÷ the target.

    What is not known of the node is taken to be as on the one that is `alike`; unknown of both, it counts as kept. A full
    cache counts as twice the target.
    """
    known = node.inter_token if node.inter_token.predict_s(1, now_s) is not None else alike.inter_token
    idle_s, busy_s = known.predict_s(1, now_s), known.predict_s(node.streams + 1, now_s)
    slow = 0.0
    if idle_s and busy_s is not None:
        target_s = targets.inter_token_s or _IDLE_INTER_TOKENS * idle_s
        slow = busy_s / (1 - min(_MOST_SHARE, node.prompt_share.at(now_s, more_s=prompt_s))) / target_s
    return max(slow, 2.0) if (node.kv_usage or 0.0) >= _FULL else slow
