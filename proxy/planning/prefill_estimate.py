"""Whether a decode node would have a prompt's first token sooner than the prefill nodes, which are all busy. Pure."""

from collections.abc import Sequence
from itertools import islice
from operator import attrgetter
from typing import Final, NamedTuple

from baton.proxy.nodes.node import Node

# A decode node must be sooner by a fifth: predictions err, and its streams are better left alone.
_SOONER: Final = 0.8
_LOOKED_AT: Final = 16  # prefill nodes, if none of all is idle
_load: Final = attrgetter("load")


class Estimate(NamedTuple):
    """What is expected of a prompt on the node that computes it."""

    prompt_bytes: float  # that the node has to compute until its first token, of prompts before it as well
    first_token_s: float | None  # from the request's arrival there; None: too little has been seen of the node


def of_prefill(node: Node, new_bytes: int) -> Estimate:
    """Estimate a prompt on a prefill node, of which so many bytes are new to it."""
    prompt_bytes = node.load + new_bytes
    return Estimate(prompt_bytes, node.prefill_time.predict_s(prompt_bytes))


def of_decode(node: Node, new_bytes: int) -> Estimate:
    """Estimate a prompt on a decode node that computes it itself."""
    prompt_bytes = node.own_prompt_bytes + new_bytes
    return Estimate(prompt_bytes, node.prefill_time.predict_s(prompt_bytes))


def is_sooner_on_decode(decode: Node, new_bytes: int, prefill: Sequence[Node], *, max_stream_delay_s: float) -> bool:
    """Whether a decode node had better compute a prompt itself.

    Args:
        decode: the decode node.
        new_bytes: the part of the prompt that it is not believed to have.
        prefill: the prefill nodes that could compute it, at least one.
        max_stream_delay_s: how long other streams of the decode node may wait for it; 0: it computes nothing.
    """
    if not max_stream_delay_s or any(not node.load for node in prefill):
        return False
    best = min(islice(prefill, _LOOKED_AT), key=_load)
    there_s = of_prefill(best, new_bytes).first_token_s
    if there_s is None:
        return False
    prompt_bytes, here_s = of_decode(decode, new_bytes)
    seen = decode.prefill_time
    if here_s is None:  # it has computed none: its time is taken for the prefill node's
        seen, here_s = best.prefill_time, best.prefill_time.predict_s(prompt_bytes)
    if here_s is None or here_s > there_s * _SOONER:
        return False
    has_streams = decode.requests + decode.others.requests > 0
    return not has_streams or prompt_bytes * seen.per_byte_s <= max_stream_delay_s
