"""Which nodes compute a prompt and make its tokens, by what is expected of them."""

import pytest

from baton.proxy.nodes.cached_cost import PromptParts
from baton.proxy.nodes.faded_line import MIN_SAMPLES
from baton.proxy.planning.placement import Placement, Targets, estimate
from tests.unit.proxy.members import info, node
from tests.unit.proxy.planning.measured_nodes import (
    LATE_BYTES,
    NEW_BYTES,
    ON_DECODE,
    ON_PREFILL,
    PAIR,
    PER_BYTE_S,
    give_prompts,
    measured,
    place,
)

HALF = Targets(max_prompt_share=0.5)


def test_a_pair_that_keeps_the_targets_gets_every_prompt() -> None:
    """Although the decode node would be sooner: four times the idle time is what is aimed at."""
    assert place(measured("prefill"), measured("decode")) is PAIR
    assert place(measured("prefill", queue_bytes=3 * NEW_BYTES - 10), measured("decode")) is PAIR
    assert place(measured("prefill", queue_bytes=3 * NEW_BYTES + 10), measured("decode")) is ON_DECODE
    late = measured("prefill", queue_bytes=3 * NEW_BYTES + 10)
    assert place(late, measured("decode"), targets=Targets(first_token_s=1.0)) is PAIR


def test_what_the_prefill_node_has_of_a_prompt_counts() -> None:
    """Not for its target: it may take as long as another prompt of its length."""
    for there, placement in ((NEW_BYTES, ON_DECODE), (0, PAIR)):
        late = measured("prefill", queue_bytes=round(3.5 * NEW_BYTES))
        assert place(late, measured("decode"), there=there) is placement


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
    for _ in range(2):
        decode.prompt_rate.add(500_000, 0.0)  # half of its time, and then all of it

        assert place(measured("prefill"), decode) is ON_PREFILL
    prefill = measured("prefill")
    prefill.clock = decode.clock = lambda: 60.0  # and that fades
    assert place(prefill, decode) is PAIR


@pytest.mark.parametrize(
    ("there", "here", "requests", "placement"),
    [
        (10_000, 30_000, 4, ON_PREFILL),
        (30_000, 10_000, 6, ON_DECODE),
        (30_000, 30_000, 1, ON_DECODE),
        (30_000, 30_000, 9, ON_PREFILL),
        (30_000, 10_000, 8, ON_PREFILL),
        (30_000, 10_000, 40, ON_PREFILL),
    ],
    ids=[
        "it has more of it",
        "decode node has",
        "decode node has less to do",
        "more to do",
        "enough to do",
        "much more",
    ],
)
def test_both_nodes_are_then_used_as_plain_servers(there: int, here: int, requests: int, placement: Placement) -> None:
    """Conversations stay on their nodes; not all of those that share a beginning."""
    late, full_of_prompts = measured("prefill", queue_bytes=5 * NEW_BYTES), measured("decode")
    full_of_prompts.prompt_rate.add(900_000, 0.0)  # so that its streams are slow
    for _ in range(requests):
        full_of_prompts.begin(1)

    assert place(late, full_of_prompts, there=there, here=here, targets=Targets(inter_token_s=0.01)) is placement


def test_a_decode_node_that_would_be_late_and_later_than_the_prefill_node_is_asked_no_more() -> None:
    """It has as many prompts, or computes slowly; a pair has it decode."""
    late = measured("prefill", queue_bytes=2 * LATE_BYTES)  # 0.45 s, and 0.2 is aimed at

    assert place(late, measured("decode", queue_bytes=LATE_BYTES)) is ON_DECODE
    assert place(late, measured("decode", queue_bytes=4 * LATE_BYTES)) is PAIR
    assert place(late, measured("decode", per_byte_s=1e-4)) is PAIR
    assert place(late, measured("decode", per_byte_s=7e-5)) is ON_DECODE


def test_both_nodes_are_plain_servers_until_that_has_been_over_for_a_while() -> None:
    """Streams of pairs would meet the prompts that their decode node was given."""
    prefill, decode = measured("prefill"), measured("decode")
    now_s = [0.0]
    prefill.clock = decode.clock = lambda: now_s[0]
    late = prefill.begin(LATE_BYTES)
    assert place(prefill, decode) is ON_DECODE
    late()

    for now_s[0], placement in ((0.0, ON_PREFILL), (9.9, ON_PREFILL), (10.1, PAIR)):
        assert place(prefill, decode) is placement
    assert place(prefill, measured("decode", running=7), prefill_may_decode=False) is PAIR


def test_a_crowded_prefill_node_decodes_nothing_for_fast_streams_where_the_decode_node_may_not_compute() -> None:
    """Its streams would wait for the prompts that make it late."""
    prefill, decode = measured("prefill"), measured("decode")
    late = prefill.begin(LATE_BYTES)
    assert place(prefill, decode, decode_may_compute=False) is PAIR
    assert place(prefill, decode) is ON_DECODE
    late()

    assert place(prefill, decode, decode_may_compute=False) is PAIR
    assert place(prefill, decode) is ON_PREFILL


def test_a_request_that_stays_a_pair_makes_no_node_crowded() -> None:
    """The decode node has got no prompt that other streams would wait for."""
    prefill, decode = measured("prefill"), measured("decode")
    late = prefill.begin(LATE_BYTES)
    assert place(prefill, decode, decode_may_compute=False) is PAIR
    late()

    assert place(prefill, decode) is PAIR


def test_a_slow_decode_node_says_nothing_of_the_pairs_of_others() -> None:
    """Nor a late prefill node of the other decode nodes; its own decode node has got a prompt."""
    prefill, other, decode = measured("prefill"), measured("prefill"), measured("decode")
    assert place(prefill, measured("decode", running=7)) is ON_PREFILL
    assert place(prefill, decode) is PAIR

    late = prefill.begin(LATE_BYTES)
    assert place(prefill, decode) is ON_DECODE
    late()
    assert [place(other, decode), place(other, measured("decode"))] == [ON_PREFILL, PAIR]
    assert place(prefill, measured("decode")) is ON_PREFILL


def test_a_node_that_has_restarted_is_not_crowded() -> None:
    decode = measured("decode")
    decode.prompt_rate.add(900_000, 0.0)
    decode.crowded_until_s = 10.0

    decode.describe(info("decode", incarnation="another"))

    assert (decode.crowded_until_s, decode.prompt_rate.bytes_per_s(0.0)) == (0.0, 0.0)


def test_an_idle_pair_is_not_late_for_a_short_prompt_whatever_predictions_of_long_ones_were_wrong_by() -> None:
    """Times that grow faster than the prompt leave the line by more than a short prompt takes."""
    prefill = node("prefill")
    prefill.clock = lambda: 0.0
    for prompt_bytes in (6000, 9000, 12_000) * MIN_SAMPLES:
        prefill.prefill_time.learn(prompt_bytes, 2e-9 * prompt_bytes**2, 0.0)
    assert prefill.prefill_time.spread > 0.2

    assert place(prefill, measured("decode"), prompt_bytes=100, there=100, here=100) is PAIR


def test_what_predictions_were_wrong_by_is_added() -> None:
    """Times a third longer and shorter than the line says."""
    prefill = node("prefill")
    prefill.clock = lambda: 0.0
    for number in range(8 * MIN_SAMPLES):
        prompt_bytes = (1000, 9000)[number % 2]
        prefill.prefill_time.learn(prompt_bytes, prompt_bytes * PER_BYTE_S * (2 / 3, 4 / 3)[number // 2 % 2], 0.0)
    target = Targets(first_token_s=0.2)

    end = prefill.begin(round(0.7 * NEW_BYTES))
    assert (
        place(prefill, measured("decode"), targets=Targets(first_token_s=0.001)) is PAIR
    )  # within twice what an idle node takes
    end()
    prefill.begin(9000)
    assert place(prefill, measured("decode"), targets=target) is PAIR  # 0.14 s, and a third of it
    prefill.begin(2000)
    assert place(prefill, measured("decode"), targets=target) is ON_DECODE  # 0.16 s, and a third of it


def test_a_target_below_what_an_idle_node_takes_makes_no_prompt_late() -> None:
    """Another way would be no sooner."""
    impossible = Targets(first_token_s=0.001)

    assert place(measured("prefill", queue_bytes=NEW_BYTES - 10), measured("decode"), targets=impossible) is PAIR
    assert place(measured("prefill", queue_bytes=NEW_BYTES + 10), measured("decode"), targets=impossible) is ON_DECODE


def test_long_prompts_go_where_fewer_streams_would_wait_for_them() -> None:
    """Although more prompts wait there."""
    late, decode = measured("prefill", queue_bytes=40 * NEW_BYTES), measured("decode", running=6)

    assert place(late, decode, prompt_bytes=500, there=500, here=500) is ON_DECODE
    assert place(late, decode, prompt_bytes=12_000, there=12_000, here=12_000) is ON_PREFILL
    for _ in range(6):
        late.begin_stream(0)
    assert place(late, decode, prompt_bytes=12_000, there=12_000, here=12_000) is ON_DECODE


def test_a_prefill_node_that_may_not_decode_leaves_late_prompts_to_the_decode_node() -> None:
    """However many streams that has; a pair has the others."""
    late, slow = measured("prefill", queue_bytes=LATE_BYTES), measured("decode", running=7)
    for _ in range(60):
        slow.begin(1)

    assert place(late, slow) is ON_PREFILL
    assert place(late, slow, prefill_may_decode=False) is ON_DECODE
    assert place(measured("prefill", queue_bytes=LATE_BYTES, kv_usage=0.6), slow) is ON_DECODE
    assert place(measured("prefill"), slow, prefill_may_decode=False) is PAIR
    in_time = measured("prefill", queue_bytes=NEW_BYTES)  # if later than on the decode node
    assert place(in_time, slow, prefill_may_decode=False) is PAIR
    for queue_bytes in (LATE_BYTES, 2 * LATE_BYTES):  # no sooner on the decode node, or later
        with_prompts = measured("decode", running=7, queue_bytes=queue_bytes)
        assert place(late, with_prompts, prefill_may_decode=False) is PAIR


def test_where_the_decode_node_may_not_compute_the_prefill_node_decodes_as_many_streams() -> None:
    """None whose first token is late: on a pair it is no later, and its stream waits for no other prompt."""
    slow, full = measured("decode", running=3), measured("decode", running=1, kv_usage=0.95)
    prefill, late = measured("prefill"), measured("prefill", queue_bytes=LATE_BYTES)

    assert place(prefill, slow, decode_may_compute=False) is ON_PREFILL
    assert place(prefill, full) is ON_PREFILL
    assert place(late, slow, decode_may_compute=False) is PAIR
    computing = measured("prefill")
    computing.prompt_rate.add(900_000, 0.0)  # 9 s of the last ten: tokens would wait for prompts
    assert place(computing, slow, decode_may_compute=False) is PAIR
    assert place(computing, full) is ON_PREFILL
    for _ in range(3):
        prefill.begin_stream(0)
    assert place(prefill, slow, decode_may_compute=False) is ON_PREFILL
    prefill.begin_stream(0)
    assert place(prefill, slow, decode_may_compute=False) is PAIR
    assert place(prefill, full) is PAIR


@pytest.mark.parametrize("share", [0.5, 0.99])
def test_prompts_take_a_share_of_the_time_of_a_node_that_makes_tokens(share: float) -> None:
    bound = Targets(max_prompt_share=share)
    late, decode = measured("prefill", queue_bytes=900_000, kv_usage=0.6), measured("decode")
    prefill, slow = measured("prefill"), measured("decode", kv_usage=0.95)

    assert (place(late, decode, targets=bound), place(prefill, slow, targets=bound)) == (ON_DECODE, ON_PREFILL)
    for made in (decode, prefill):
        made.prompt_share.add(10 * share - 0.04, 0.0)  # seconds of the last ten, and 0.05 of this prompt
    assert (place(late, decode, targets=bound), place(prefill, slow, targets=bound)) == (PAIR, PAIR)
    for made in (decode, prefill):
        made.prompt_share.add(20.0, 0.0)
    assert (place(late, decode), place(prefill, slow)) == (ON_DECODE, ON_PREFILL)  # all of its time is no bound


def test_a_decode_node_that_has_computed_nothing_is_taken_to_be_as_fast_as_the_prefill_node() -> None:
    """Its share of prompts as well; and it is tried once a pair takes twice as long as an idle one."""
    late, unknown = measured("prefill", queue_bytes=900_000), node("decode")
    unknown.clock = lambda: 0.0

    assert place(late, unknown, targets=HALF) is ON_DECODE
    assert place(late, unknown, here=600_000, targets=HALF) is PAIR
    unknown.crowded_until_s = 0.0
    assert place(measured("prefill", queue_bytes=NEW_BYTES - 10), unknown) is PAIR
    assert place(measured("prefill", queue_bytes=NEW_BYTES + 10), unknown) is ON_DECODE
    assert place(measured("prefill", queue_bytes=NEW_BYTES + 10), measured("decode")) is PAIR


@pytest.mark.parametrize(("fixed_s", "placement"), [(0.0, ON_DECODE), (6.0, PAIR)])
def test_what_every_prompt_takes_counts_in_a_nodes_share_of_prompts(fixed_s: float, placement: Placement) -> None:
    """However short it is, and whatever the time is; no more than 5 s of ten are free for it."""
    late, decode = measured("prefill", queue_bytes=900_000, kv_usage=0.6), node("decode")
    late.clock = decode.clock = lambda: 1e6
    for made, more_s in ((late, 0.0), (decode, fixed_s)):
        for prompt_bytes in (1000, 9000) * MIN_SAMPLES:
            made.prefill_time.learn(prompt_bytes, prompt_bytes * PER_BYTE_S + more_s, 1e6)

    assert place(late, decode, here=100, targets=HALF) is placement


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

    full_beside_prompts = measured("decode", tokens=10, kv_usage=0.95)
    give_prompts(full_beside_prompts, 0.5)
    assert place(measured("prefill"), full_beside_prompts) is ON_PREFILL  # whatever would be slow there


@pytest.mark.parametrize(("queue_bytes", "tells"), [(0, True), (NEW_BYTES // 4, True), (NEW_BYTES // 4 + 1, False)])
def test_only_a_prompt_that_waits_for_little_tells_what_its_cached_part_costs(queue_bytes: int, *, tells: bool) -> None:
    parts = PromptParts(NEW_BYTES, 4096)

    found = estimate(measured("prefill", queue_bytes=queue_bytes), NEW_BYTES, parts)

    assert found.unqueued == (parts if tells else None)
