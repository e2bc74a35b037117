"""Whether a decode node would have a prompt's first token sooner than the prefill nodes, which are all busy. Pure."""

from typing import Final, NamedTuple

from baton.proxy.nodes.node import Node
from baton.proxy.routing.router import Choice

# A decode node must be sooner by a fifth: predictions err, and its streams are better left alone.
_SOONER: Final = 0.8


class Estimate(NamedTuple):
    """What is expected of a prompt on the node that computes it."""

    prompt_bytes: float  # that the node has to compute until its first token, of prompts before it as well
    first_token_s: float | None  # from sending it; None: too little has been seen of the node


def of_prefill(node: Node, new_bytes: int) -> Estimate:
    """Estimate a prompt on a prefill node, of which so many bytes are new to it."""
    return _estimate(node, node.load + new_bytes)


def of_decode(node: Node, new_bytes: int) -> Estimate:
    """Estimate a prompt on a decode node that computes it itself."""
    return _estimate(node, node.own_prompt_bytes + new_bytes)


def is_sooner_on_decode(decode: Choice, prefill: Choice, *, max_stream_delay_s: float) -> bool:
    """Whether a decode node had better compute a prompt itself than the prefill node that would get it.

    Args:
        decode: the decode node, and how much of the prompt is new to it.
        prefill: the prefill node, likewise.
        max_stream_delay_s: how long other streams of the decode node may wait for the prompt.
    """
    there_s = of_prefill(prefill.node, prefill.new_bytes).first_token_s
    if there_s is None:
        return False
    node, measured = decode.node, decode.node.prefill_time
    prompt_bytes, here_s = of_decode(node, decode.new_bytes)
    if here_s is None:  # it has computed none lately: its time is taken for the prefill node's
        measured = prefill.node.prefill_time
        here_s = measured.predict_s(prompt_bytes, node.clock())
    if here_s is None or here_s > there_s * _SOONER:
        return False
    has_streams = node.requests + node.others.requests > 0
    return not has_streams or measured.limit_s(prompt_bytes) <= max_stream_delay_s


def _estimate(node: Node, prompt_bytes: float) -> Estimate:
    return Estimate(prompt_bytes, node.prefill_time.predict_s(prompt_bytes, node.clock()))
