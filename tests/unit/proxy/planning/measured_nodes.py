"""Nodes whose times are known, and where a prompt is placed on two of them."""

from typing import Literal

from baton.contracts.node_info import NodeLoad
from baton.proxy.nodes.faded_line import MIN_SAMPLES
from baton.proxy.nodes.node import Node
from baton.proxy.planning.placement import Placement, Targets, choose_placement
from baton.proxy.routing.router import choice_of
from tests.unit.proxy.members import info, node

PER_BYTE_S = 1e-5
TOKEN_S = 0.02  # with one stream
PER_STREAM_S = 0.01  # for each other one
NEW_BYTES = 5000
PAIR, ON_DECODE, ON_PREFILL = Placement
LATE_BYTES = (
    4 * NEW_BYTES
)  # of prompts before it: one more, and its first token comes after five times what an idle node takes


def report(made: Node, *, running: int, kv_usage: float = 0.1, tokens: int = 100) -> None:
    """Let a node report so many tokens more, each after the time that so many streams cause."""
    before = made.info.load if made.info and made.info.load else NodeLoad(requests=0, prompt_bytes=0)
    count, sum_s = before.inter_token_count or 0, before.inter_token_sum_s or 0.0
    load = NodeLoad(
        requests=0,
        prompt_bytes=0,
        running=running,
        kv_usage=kv_usage,
        inter_token_count=count + tokens,
        inter_token_sum_s=sum_s + tokens * (TOKEN_S + PER_STREAM_S * (running - 1)),
    )
    made.describe(info(made.role, load=load))


def measured(
    role: Literal["prefill", "decode"],
    *,
    per_byte_s: float = PER_BYTE_S,
    queue_bytes: int = 0,
    running: int = 0,
    kv_usage: float = 0.1,
    tokens: int = 100,
) -> Node:
    """Make a node whose times are known, and which has so many bytes of prompts to compute; `tokens`: of each report, all of them now."""
    made = node(role)
    made.clock = lambda: 0.0
    for prompt_bytes in (1000, 9000) * MIN_SAMPLES:
        made.prefill_time.learn(prompt_bytes, prompt_bytes * per_byte_s, 0.0)
    if role == "decode":
        for streams in (1, 11) * MIN_SAMPLES:
            report(made, running=streams, tokens=tokens)
    report(made, running=running, kv_usage=kv_usage, tokens=0)
    if queue_bytes and role == "decode":
        made.begin_computing(queue_bytes)
    elif queue_bytes:
        made.begin(queue_bytes)
    return made


def place(
    prefill: Node,
    decode: Node,
    *,
    prompt_bytes: int = NEW_BYTES,
    there: int = NEW_BYTES,
    here: int = NEW_BYTES,
    targets: Targets = Targets(),  # noqa: B008  # immutable
    prefill_nodes_share: float = 0.5,
    decode_may_compute: bool = True,
    prefill_may_decode: bool = True,
) -> Placement:
    """So many bytes of the prompt are new to the prefill node (there), and to the decode node (here)."""
    return choose_placement(
        choice_of(prefill, there),
        choice_of(decode, here),
        targets,
        prompt_bytes=prompt_bytes,
        prefill_nodes_share=prefill_nodes_share,
        decode_may_compute=decode_may_compute,
        prefill_may_decode=prefill_may_decode,
    )


def give_prompts(node: Node, share: float, seconds: float = 60.0) -> None:
    """Give a node prompts of 0.1 s at a steady rate that has begun so long ago."""
    for number in range(round(10 * share * seconds)):
        node.prompt_rate.add(10_000, number / (10 * share) - seconds)
