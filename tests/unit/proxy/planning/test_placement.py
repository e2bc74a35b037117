"""Which nodes compute a prompt and make its tokens, by what is expected of them."""

from typing import Literal

import pytest

from baton.contracts.node_info import NodeLoad
from baton.proxy.nodes.faded_line import MIN_SAMPLES
from baton.proxy.nodes.node import Node
from baton.proxy.planning.placement import Placement, Targets, choose_placement
from baton.proxy.routing.router import Choice
from tests.unit.proxy.members import computing, info, node

PER_BYTE_S = 1e-5
TOKEN_S = 0.02  # with one stream
PER_STREAM_S = 0.01  # for each other one
NEW_BYTES = 5000
PAIR, ON_DECODE, ON_PREFILL = Placement
HALF = Targets(max_prompt_share=0.5)


def report(made: Node, *, running: int, kv_usage: float = 0.1, tokens: int = 100, per_answer: int = 50) -> None:
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
        answers=(before.answers or 0) + tokens // per_answer,
    )
    made.describe(info(made.role, load=load))


def measured(
    role: Literal["prefill", "decode"],
    *,
    per_byte_s: float = PER_BYTE_S,
    queue_bytes: int = 0,
    running: int = 0,
    kv_usage: float = 0.1,
    per_answer: int = 50,
) -> Node:
    """Make a node whose times are known; on a decode node the queue is a stream with such a prompt."""
    made = node(role)
    made.clock = lambda: 0.0
    for prompt_bytes in (1000, 9000) * MIN_SAMPLES:
        made.prefill_time.learn(prompt_bytes, prompt_bytes * per_byte_s, 0.0)
    if role == "decode":
        for streams in (1, 11) * MIN_SAMPLES:
            report(made, running=streams, per_answer=per_answer)
    report(made, running=running, kv_usage=kv_usage, tokens=0)
    if queue_bytes:
        made.begin(queue_bytes)
    return made


def place(
    prefill: Node,
    decode: Node,
    *,
    new_bytes: int = NEW_BYTES,
    cached_bytes: int = 0,
    targets: Targets = Targets(),  # noqa: B008  # immutable
    decode_may_compute: bool = True,
    prefill_may_decode: bool = True,
) -> Placement:
    """`cached_bytes` of the prompt are in the prefill node's cache."""
    return choose_placement(
        Choice(prefill, new_bytes - cached_bytes),
        Choice(decode, new_bytes),
        targets,
        prompt_bytes=new_bytes,
        decode_may_compute=decode_may_compute,
        prefill_may_decode=prefill_may_decode,
    )


def test_a_pair_that_keeps_the_targets_gets_every_prompt() -> None:
    """Although the decode node would be sooner: four times the idle time is what is aimed at, and four tenths of it are safe."""
    assert place(measured("prefill", queue_bytes=round(0.6 * NEW_BYTES) - 10), measured("decode")) is PAIR
    assert place(measured("prefill", queue_bytes=NEW_BYTES), measured("decode")) is PAIR


def test_a_decode_node_takes_what_would_be_late_on_a_prefill_node() -> None:
    late = measured("prefill", queue_bytes=4 * NEW_BYTES)

    assert place(late, measured("decode")) is ON_DECODE
    assert place(late, measured("decode"), decode_may_compute=False) is PAIR
    assert place(late, measured("decode"), targets=Targets(first_token_s=1.0)) is PAIR


def test_a_share_of_all_its_time_bounds_no_prompt() -> None:
    """As on a plain server: one prompt may take longer than the time over which the share is taken."""
    long, late = 2_000_000, measured("prefill", queue_bytes=40_000_000)  # 20 s, and 400 s before it

    for share, placement in ((1.0, ON_DECODE), (0.99, PAIR)):
        decode = measured("decode", running=1)
        assert (
            place(late, decode, new_bytes=long, targets=Targets(inter_token_s=5.0, max_prompt_share=share)) is placement
        )


def test_a_queue_that_is_late_makes_those_to_come_late() -> None:
    """So it is left to itself where that costs the decode node's streams no more than the requests that it would delay."""
    decode = measured("decode", running=2, per_answer=2)
    busy = measured("prefill", queue_bytes=8 * NEW_BYTES)

    targets = Targets(inter_token_s=0.05, max_prompt_share=0.99)

    assert place(busy, decode, targets=targets) is PAIR
    busy.prompt_share.add(7.0, 0.0)  # of 10 s
    assert place(busy, decode, targets=targets) is ON_DECODE


def test_a_stream_that_would_wait_for_prompts_of_its_decode_node_stays_where_its_prompt_is() -> None:
    """Unless those are computed by the time that it begins."""
    decode = measured("decode", per_answer=2)
    with computing(decode, 20 * NEW_BYTES):
        assert place(measured("prefill"), decode, decode_may_compute=False) is ON_PREFILL
        late = measured("prefill", queue_bytes=20 * NEW_BYTES)
        assert place(late, decode, targets=Targets(first_token_s=10.0), decode_may_compute=False) is PAIR


def test_a_decode_node_that_is_hardly_sooner_does_not_take_it() -> None:
    assert place(measured("prefill", queue_bytes=4 * NEW_BYTES), measured("decode", per_byte_s=4.9e-5)) is PAIR


def test_of_two_ways_that_miss_the_target_the_earlier_one_is_taken() -> None:
    assert place(measured("prefill", queue_bytes=20 * NEW_BYTES), measured("decode", per_byte_s=6e-5)) is ON_DECODE


@pytest.mark.parametrize(("per_answer", "streams", "expected"), [(50, 4, ON_DECODE), (2, 4, PAIR), (2, 0, ON_DECODE)])
def test_streams_that_would_wait_too_long_for_a_prompt_keep_it_away(
    per_answer: int, streams: int, expected: Placement
) -> None:
    """A prompt of 0.05 s: one token in fifty waits for it, or one in two."""
    decode = measured("decode", running=streams, per_answer=per_answer)

    late = measured("prefill", queue_bytes=5 * NEW_BYTES)

    assert place(late, decode, targets=Targets(inter_token_s=0.1)) is expected


def test_what_the_prefill_node_has_of_a_prompt_counts() -> None:
    """Not for its target: it may take as long as another prompt of its length."""
    late = measured("prefill", queue_bytes=round(1.6 * NEW_BYTES) - 10)

    assert place(late, measured("decode")) is ON_DECODE
    assert place(late, measured("decode"), cached_bytes=NEW_BYTES) is PAIR


def test_prompts_that_a_decode_node_computes_count() -> None:
    decode = measured("decode")
    with computing(decode, 4 * NEW_BYTES):
        assert place(measured("prefill", queue_bytes=4 * NEW_BYTES), decode) is PAIR
        assert place(measured("prefill", queue_bytes=90_000), decode) is ON_DECODE


@pytest.mark.parametrize(("streams", "expected"), [(0, ON_DECODE), (1, PAIR)])
def test_prompts_take_a_share_of_a_decode_nodes_time_while_it_has_streams(streams: int, expected: Placement) -> None:
    decode = measured("decode", running=streams)
    decode.prompt_share.add(4.99, 0.0)  # of 10 s: half, with this prompt

    assert place(measured("prefill", queue_bytes=900_000), decode, targets=HALF) is expected


def test_the_share_of_past_prompts_fades() -> None:
    decode = measured("decode", running=1)
    decode.prompt_share.add(50.0, -60.0)

    assert place(measured("prefill", queue_bytes=900_000), decode) is ON_DECODE


def test_a_line_that_is_level_by_chance_lets_no_long_prompt_to_streams() -> None:
    decode = node("decode")
    decode.clock = lambda: 0.0
    for prompt_bytes in (1000, 3000) * MIN_SAMPLES:
        decode.prefill_time.learn(prompt_bytes, 0.02 if prompt_bytes == 1000 else 0.018, 0.0)
    decode.begin_stream(500)
    late = measured("prefill", queue_bytes=9_000_000)

    assert place(late, decode, new_bytes=1 << 20, targets=HALF) is PAIR
    assert place(late, decode, new_bytes=2000) is ON_DECODE


def test_a_decode_node_that_has_computed_nothing_is_taken_to_be_as_fast_as_the_prefill_node() -> None:
    decode = node("decode")
    decode.clock = lambda: 0.0

    assert place(measured("prefill", queue_bytes=4 * NEW_BYTES), decode) is ON_DECODE


def test_a_prefill_node_of_which_little_was_seen_gets_the_prompt() -> None:
    prefill = node("prefill")
    prefill.clock = lambda: 0.0
    prefill.begin(90_000)

    assert place(prefill, measured("decode")) is PAIR


def test_a_prefill_node_decodes_where_streams_are_slow_on_the_decode_node() -> None:
    """One stream waits 20 ms for a token, two wait 30, three wait 40: two thirds of three times that, which is not safe."""
    assert place(measured("prefill"), measured("decode", running=1)) is PAIR
    assert place(measured("prefill"), measured("decode", running=2)) is ON_PREFILL
    assert place(measured("prefill"), measured("decode", running=5)) is ON_PREFILL
    assert place(measured("prefill"), measured("decode", running=7), prefill_may_decode=False) is PAIR
    assert place(measured("prefill"), measured("decode", running=7), targets=Targets(inter_token_s=0.5)) is PAIR


def test_streams_wait_for_the_prompts_on_their_node() -> None:
    """Half of its time: a token takes twice as long."""
    decode = measured("decode", running=1)
    assert place(measured("prefill"), decode) is PAIR
    decode.prompt_share.add(5.0, 0.0)

    assert place(measured("prefill"), decode) is ON_PREFILL


def test_a_prefill_nodes_streams_and_prompts_count() -> None:
    slow = measured("decode", running=7)
    busy, streaming = measured("prefill"), measured("prefill")
    busy.prompt_share.add(5.0, 0.0)  # of 10 s, and this prompt
    for _ in range(7):
        streaming.begin_stream(0)

    assert place(busy, slow, targets=HALF) is PAIR
    assert place(streaming, slow) is PAIR


def test_a_full_cache_counts_as_slow_and_a_half_full_one_takes_no_streams() -> None:
    full = measured("decode", kv_usage=0.95)

    assert place(measured("prefill"), full) is ON_PREFILL
    assert place(measured("prefill", kv_usage=0.6), full) is PAIR


def test_where_both_are_slow_the_less_slow_way_is_taken() -> None:
    late, targets = measured("prefill", queue_bytes=6 * NEW_BYTES), Targets(max_prompt_share=0.99)

    assert place(late, measured("decode", running=5), targets=targets) is ON_DECODE
    assert place(late, measured("decode", running=40), targets=targets) is ON_PREFILL


@pytest.mark.parametrize(
    ("there", "here", "requests", "placement"),
    [
        (4000, 9000, 0, ON_PREFILL),
        (9000, 4000, 9, ON_DECODE),
        (9000, 9000, 0, ON_DECODE),
        (9000, 9000, 40, ON_PREFILL),
    ],
    ids=["the prefill node has more of it", "the decode node has", "it has less to do", "it has more to do"],
)
def test_where_every_way_misses_nodes_are_used_as_plain_servers(
    there: int, here: int, requests: int, placement: Placement
) -> None:
    """Each keeps its conversations: nothing is computed twice."""
    late = measured("prefill", queue_bytes=16 * NEW_BYTES)
    slow = measured("decode", running=60)
    for _ in range(requests):
        slow.begin(1)

    def chosen(share: float = 1.0) -> Placement:
        return choose_placement(
            Choice(late, there),
            Choice(slow, here),
            Targets(max_prompt_share=share),
            prompt_bytes=12_000,
            decode_may_compute=True,
            prefill_may_decode=True,
        )

    assert chosen() is placement
    for full, usage in ((late, 0.6), (slow, 0.95)):  # no room for more streams: as with a share, the least bad way
        report(full, running=60, kv_usage=usage, tokens=0)
        assert chosen() is chosen(0.99)
        report(full, running=60, kv_usage=0.1, tokens=0)
