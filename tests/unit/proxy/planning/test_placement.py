"""Which nodes compute a prompt and make its tokens, by what is expected of them."""

from typing import Literal

import pytest

from baton.contracts.node_info import NodeLoad
from baton.proxy.nodes.faded_line import MIN_SAMPLES
from baton.proxy.nodes.node import Node
from baton.proxy.planning.placement import Placement, Targets, choose_placement
from baton.proxy.routing.router import Choice
from tests.unit.proxy.members import info, node

PER_BYTE_S = 1e-5
TOKEN_S = 0.02  # with one stream
PER_STREAM_S = 0.01  # for each other one
NEW_BYTES = 5000
PAIR, ON_DECODE, ON_PREFILL = Placement
HALF = Targets(max_prompt_share=0.5)
LATE_BYTES = (
    4 * NEW_BYTES
)  # of prompts before it: one more, and its first token comes after four times what an idle node takes


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
) -> Node:
    """Make a node whose times are known, and which has so many bytes of prompts to compute."""
    made = node(role)
    made.clock = lambda: 0.0
    for prompt_bytes in (1000, 9000) * MIN_SAMPLES:
        made.prefill_time.learn(prompt_bytes, prompt_bytes * per_byte_s, 0.0)
    if role == "decode":
        for streams in (1, 11) * MIN_SAMPLES:
            report(made, running=streams)
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
    decode_may_compute: bool = True,
    prefill_may_decode: bool = True,
) -> Placement:
    """So many bytes of the prompt are new to the prefill node (there), and to the decode node (here)."""
    return choose_placement(
        Choice(prefill, there),
        Choice(decode, here),
        targets,
        prompt_bytes=prompt_bytes,
        decode_may_compute=decode_may_compute,
        prefill_may_decode=prefill_may_decode,
    )


def test_a_pair_that_keeps_the_targets_gets_every_prompt() -> None:
    """Although the decode node would be sooner: four times the idle time is what is aimed at."""
    assert place(measured("prefill"), measured("decode")) is PAIR
    assert place(measured("prefill", queue_bytes=3 * NEW_BYTES - 10), measured("decode")) is PAIR
    assert place(measured("prefill", queue_bytes=3 * NEW_BYTES + 10), measured("decode")) is ON_DECODE
    late = measured("prefill", queue_bytes=3 * NEW_BYTES + 10)
    assert place(late, measured("decode"), targets=Targets(first_token_s=1.0)) is PAIR


def test_what_the_prefill_node_has_of_a_prompt_counts() -> None:
    """Not for its target: it may take as long as another prompt of its length."""
    late = measured("prefill", queue_bytes=round(3.5 * NEW_BYTES))

    assert place(late, measured("decode")) is ON_DECODE
    assert place(late, measured("decode"), there=0) is PAIR


def test_a_prefill_node_of_which_little_was_seen_gets_the_prompt() -> None:
    prefill = node("prefill")
    prefill.clock = lambda: 0.0
    prefill.begin(90_000)

    assert place(prefill, measured("decode", running=7)) is PAIR


def test_streams_that_are_slow_on_the_decode_node_end_the_pair() -> None:
    """One stream waits 20 ms for a token, two wait 30: half of three times that, and more of them come."""
    assert place(measured("prefill"), measured("decode")) is PAIR
    assert place(measured("prefill"), measured("decode", running=1)) is ON_PREFILL
    slow = measured("decode", running=7)
    assert place(measured("prefill"), slow, targets=Targets(inter_token_s=0.5)) is PAIR
    unknown = node("decode")
    unknown.clock = lambda: 0.0
    assert place(measured("prefill"), unknown) is PAIR


def test_streams_wait_for_the_prompts_on_their_node() -> None:
    """Half of its time: a token takes twice as long."""
    decode = measured("decode")
    assert place(measured("prefill"), decode) is PAIR
    decode.prompt_share.add(5.0, 0.0)  # of 10 s

    assert place(measured("prefill"), decode) is ON_PREFILL
    decode.clock = lambda: 60.0  # and that fades
    assert place(measured("prefill"), decode) is PAIR


@pytest.mark.parametrize(
    ("there", "here", "requests", "placement"),
    [
        (10_000, 30_000, 0, ON_PREFILL),
        (30_000, 10_000, 4, ON_DECODE),
        (30_000, 30_000, 0, ON_DECODE),
        (30_000, 30_000, 9, ON_PREFILL),
        (30_000, 10_000, 40, ON_PREFILL),
    ],
    ids=["it has more of it", "the decode node has", "the decode node has less to do", "more to do", "much more to do"],
)
def test_both_nodes_are_then_used_as_plain_servers(there: int, here: int, requests: int, placement: Placement) -> None:
    """Each keeps its conversations, so that nothing is computed twice; not all of those that share a beginning."""
    late, decode = measured("prefill", queue_bytes=5 * NEW_BYTES), measured("decode")
    for _ in range(requests):
        decode.begin(1)

    assert place(late, decode, there=there, here=here, targets=Targets(first_token_s=0.1)) is placement


def test_prompts_that_wait_on_either_node_count() -> None:
    late = measured("prefill", queue_bytes=2 * LATE_BYTES)

    assert place(late, measured("decode", queue_bytes=LATE_BYTES)) is ON_DECODE
    assert place(late, measured("decode", queue_bytes=4 * LATE_BYTES)) is ON_PREFILL


def test_long_prompts_go_where_fewer_streams_would_wait_for_them() -> None:
    """Although there are more prompts."""
    late, decode = measured("prefill", queue_bytes=40 * NEW_BYTES), measured("decode", running=6)

    assert place(late, decode, prompt_bytes=500, there=500, here=500) is ON_DECODE
    assert place(late, decode, prompt_bytes=12_000, there=12_000, here=12_000) is ON_PREFILL
    for _ in range(6):
        late.begin_stream(0)
    assert place(late, decode, prompt_bytes=12_000, there=12_000, here=12_000) is ON_DECODE


def test_a_node_that_may_not_serve_a_request_whole_leaves_it_to_the_pair() -> None:
    """As does one that may, but has more to do than the other."""
    late, slow = measured("prefill", queue_bytes=40 * NEW_BYTES), measured("decode", running=3)

    assert place(late, slow, prefill_may_decode=False) is ON_DECODE
    assert place(late, slow, decode_may_compute=False) is PAIR
    for _ in range(40):
        slow.begin(1)
    assert place(late, slow, decode_may_compute=False) is ON_PREFILL
    assert place(late, slow, prefill_may_decode=False) is PAIR


@pytest.mark.parametrize("share", [0.5, 0.99])
def test_prompts_take_a_share_of_the_time_of_a_node_that_makes_tokens(share: float) -> None:
    bound = Targets(max_prompt_share=share)
    late, decode = measured("prefill", queue_bytes=900_000), measured("decode")
    prefill, slow = measured("prefill"), measured("decode", kv_usage=0.95)

    assert (place(late, decode, targets=bound), place(prefill, slow, targets=bound)) == (ON_DECODE, ON_PREFILL)
    for made in (decode, prefill):
        made.prompt_share.add(10 * share - 0.04, 0.0)  # seconds of the last ten, and 0.05 of this prompt
    assert (place(late, decode, targets=bound), place(prefill, slow, targets=bound)) == (PAIR, PAIR)
    for made in (decode, prefill):
        made.prompt_share.add(20.0, 0.0)
    assert (place(late, decode), place(prefill, slow)) == (ON_DECODE, ON_PREFILL)  # all of its time is no bound


def test_a_line_that_is_level_by_chance_lets_no_long_prompt_to_streams() -> None:
    decode = node("decode")
    decode.clock = lambda: 0.0
    for prompt_bytes in (1000, 3000) * MIN_SAMPLES:
        decode.prefill_time.learn(prompt_bytes, 0.02 if prompt_bytes == 1000 else 0.018, 0.0)
    late = measured("prefill", queue_bytes=9_000_000)

    assert place(late, decode, prompt_bytes=1 << 20, there=1 << 20, here=1 << 20, targets=HALF) is PAIR
    assert place(late, decode, targets=HALF) is ON_DECODE


def test_a_full_cache_counts_as_slow_and_a_half_full_one_takes_no_streams() -> None:
    full = measured("decode", kv_usage=0.95)

    assert place(measured("prefill"), full) is ON_PREFILL
    assert place(measured("prefill", kv_usage=0.6), full) is PAIR
    assert place(measured("prefill", queue_bytes=90_000), full) is PAIR
