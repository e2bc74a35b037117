"""Which nodes compute a prompt and make its tokens, by what is expected of them."""

from typing import Literal

import pytest

from baton.contracts.node_info import NodeLoad
from baton.proxy.nodes.cached_cost import PromptParts
from baton.proxy.nodes.faded_line import MIN_SAMPLES
from baton.proxy.nodes.faded_rate import PromptRate
from baton.proxy.nodes.node import Node
from baton.proxy.planning.placement import Placement, Targets, choose_placement, estimate
from baton.proxy.routing.router import choice_of
from tests.unit.proxy.members import info, node

PER_BYTE_S = 1e-5
TOKEN_S = 0.02  # with one stream
PER_STREAM_S = 0.01  # for each other one
NEW_BYTES = 5000
PAIR, ON_DECODE, ON_PREFILL = Placement
HALF = Targets(max_prompt_share=0.5)
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


def slowed(*, share: float = 0.5, tokens: int = 10, running: int = 0) -> Node:
    """Make a decode node that computes prompts in so much of its time."""
    made = measured("decode", tokens=tokens, running=running)
    give_prompts(made, share)
    return made


def test_streams_that_are_slow_for_the_prompts_of_their_node_alone_do_not_keep_it_a_plain_server() -> None:
    """More answers would be slow than first tokens are late if a prefill node computed all of them; not of long answers."""
    assert place(measured("prefill"), slowed()) is PAIR
    assert place(measured("prefill"), slowed(tokens=100)) is ON_PREFILL
    assert place(measured("prefill"), slowed(share=1.2, tokens=100)) is ON_PREFILL
    target = Targets(inter_token_s=0.088)  # 0.043 s for two streams beside prompts
    assert place(measured("prefill"), slowed(share=0.3, tokens=100, running=1), targets=target) is ON_PREFILL
    assert place(measured("prefill"), slowed(share=0.3, tokens=100), targets=target) is PAIR


def test_streams_that_one_decode_node_cannot_have_alone_keep_both_plain_servers() -> None:
    """Those that it has, or as many as make the tokens of both: streams that wait for prompts are more."""
    many = measured("prefill")
    for _ in range(8):
        many.begin_stream(0)
    assert place(many, slowed()) is PAIR
    assert place(measured("prefill"), slowed(running=1)) is PAIR
    assert place(measured("prefill"), slowed(running=3)) is ON_PREFILL

    # Of each of four prefill nodes; one decode node would make all.
    for tokens, placement in ((10, PAIR), (100, ON_PREFILL)):
        prefill = measured("prefill")
        report(prefill, running=1, tokens=tokens)
        assert place(prefill, slowed(), prefill_nodes_share=0.8) is placement


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


def give_prompts(node: Node, share: float, seconds: float = 60.0) -> None:
    """Give a node prompts of 0.1 s at a steady rate that has begun so long ago."""
    for number in range(round(10 * share * seconds)):
        node.prompt_rate.add(10_000, number / (10 * share) - seconds)


def given_prompts(
    *,
    share: float,
    seconds: float = 60.0,
    tokens: int = 10,
    others: int = 0,
    late_pairs: int = 0,
    pairs: int = 0,
    running: int = 0,
    crowded: bool = False,
    queue_bytes: int = LATE_BYTES,
    targets: Targets = Targets(),  # noqa: B008  # immutable
) -> Placement:
    """Place one prompt more on a late prefill node that was given prompts of 0.1 s; `others`: what other proxies have there, for one request of ours."""
    late, decode = measured("prefill", queue_bytes=queue_bytes), measured("decode", running=running, tokens=tokens)
    give_prompts(late, share, seconds)
    late.crowded_until_s = float(crowded)
    for number in range(pairs):
        late.late_pairs.add(0.0, counts=number < late_pairs)
    for made in (late, decode):
        made.others.learn(NodeLoad(requests=1 + others, prompt_bytes=0), NodeLoad(requests=1, prompt_bytes=0))
    return place(late, decode, targets=targets)


def test_a_late_first_token_stays_a_pairs_where_more_answers_would_be_slow() -> None:
    """One that meets a second prompt is, of four tokens; not of forty. 0.06 are late, beside 0.08, where prompts take 0.4 of the prefill node; 0.80 beside 0.37 at 0.95."""
    assert given_prompts(share=0.4) is PAIR
    assert given_prompts(share=0.4, targets=Targets(inter_token_s=0.5)) is ON_DECODE  # none would be slow
    assert given_prompts(share=0.4, tokens=100) is ON_DECODE
    assert given_prompts(share=0.55) is PAIR  # half as many again may be late as would be slow
    assert given_prompts(share=0.6, tokens=20) is ON_DECODE
    assert given_prompts(share=0.95) is ON_DECODE
    assert given_prompts(share=0.4, running=7) is ON_PREFILL
    assert given_prompts(share=0.0) is ON_DECODE


def test_a_few_tokens_do_not_tell_whether_answers_would_be_slow() -> None:
    late, decode = measured("prefill", queue_bytes=LATE_BYTES), node("decode")
    decode.clock = lambda: 0.0
    give_prompts(late, 0.4, seconds=10.0)
    for _ in range(2):
        report(decode, running=1)

    assert decode.inter_token.tokens_per_s(0.0) > 0
    assert place(late, decode) is PAIR


def test_what_every_prompt_takes_fills_the_prefill_node() -> None:
    """0.1 s of each, and as much by its length: nine tenths of its time."""
    late, decode = measured("prefill"), measured("decode", tokens=10)
    for prompt_bytes in (1000, 19_000) * 30 * MIN_SAMPLES:
        late.prefill_time.learn(prompt_bytes, 0.1 + prompt_bytes * PER_BYTE_S, 0.0)
    give_prompts(late, 0.45)
    late.begin(18 * NEW_BYTES)
    as_late = measured("prefill", queue_bytes=20 * NEW_BYTES)  # of which each takes half as long
    give_prompts(as_late, 0.45)

    assert place(late, decode, targets=Targets(first_token_s=1.0)) is ON_DECODE
    assert place(as_late, measured("decode", tokens=10), targets=Targets(first_token_s=1.0)) is PAIR


def test_nodes_change_over_where_that_is_worth_it() -> None:
    """Not for two more of a hundred that miss; back to pairs, not for as many that miss less."""
    for share, tokens, as_pair, as_plain_servers in (
        (0.05, 10, PAIR, ON_DECODE),  # hardly one misses either way
        (0.05, 20, ON_DECODE, ON_DECODE),  # 0.04 beside 0
        (0.45, 10, PAIR, PAIR),  # 0.085 beside 0.106
        (0.6, 10, PAIR, ON_DECODE),  # 0.174 beside 0.171
    ):
        assert given_prompts(share=share, tokens=tokens) is as_pair
        assert given_prompts(share=share, tokens=tokens, crowded=True) is as_plain_servers


def test_prompts_that_began_to_come_a_moment_ago_count_as_if_they_had_come_for_long() -> None:
    """Of their tokens too little has been seen as well: 8 of 13 after 10 s."""
    for seconds, tokens in ((10.0, 8), (60.0, 13)):
        assert given_prompts(share=0.3, seconds=seconds, tokens=tokens + 5) is ON_DECODE
        assert given_prompts(share=0.65, seconds=seconds, tokens=tokens) is PAIR
        assert given_prompts(share=0.9, seconds=seconds, tokens=tokens) is ON_DECODE


def test_prompts_that_the_decode_node_has_computed_for_long_do_not_count_as_if_they_had_just_begun() -> None:
    late, decode = measured("prefill", queue_bytes=LATE_BYTES), measured("decode", tokens=10)
    give_prompts(decode, 0.6)
    give_prompts(late, 0.2, seconds=1.0)
    assert place(late, decode) is PAIR


def test_prompts_count_from_the_last_lull_on() -> None:
    """Half a minute without any; the first two seconds count as two."""
    rate = PromptRate()
    for now_s in (0.0, 29.0, 58.0):
        rate.add(1, now_s)
    assert rate.seen_share(60.0) == pytest.approx(1.0, abs=0.01)
    assert rate.seen_share(87.0) == pytest.approx(1.0, abs=0.01)
    assert rate.seen_share(89.0) == PromptRate().seen_share(1e6) == pytest.approx(0.18, abs=0.01)
    rate.add(1, 89.0)
    assert rate.prompts_per_s(89.0) == pytest.approx(0.1)
    assert rate.seen_share(90.0) == rate.seen_share(91.0) == pytest.approx(0.18, abs=0.01)


def test_a_late_first_token_stays_a_pairs_while_nothing_is_known_of_tokens() -> None:
    """For half a minute, as long as at least half of them are in time and it comes within three times its target."""
    assert given_prompts(share=0.9, tokens=0, seconds=20.0) is PAIR
    assert given_prompts(share=0.9, tokens=0, seconds=20.0, pairs=4, late_pairs=2) is PAIR
    assert given_prompts(share=0.9, tokens=0, seconds=20.0, pairs=4, late_pairs=3) is ON_DECODE
    assert given_prompts(share=0.9, tokens=0, seconds=20.0, queue_bytes=60_000) is ON_DECODE
    assert given_prompts(share=0.9, tokens=0, seconds=40.0) is ON_DECODE
    assert given_prompts(share=0.0, tokens=0) is ON_DECODE


def test_pairs_that_were_late_less_often_than_a_queue_would_be_count_as_they_were() -> None:
    """In a conversation a prompt waits for the answer before it. Two of them say nothing."""
    assert given_prompts(share=0.95, pairs=4, late_pairs=1) is PAIR
    assert given_prompts(share=0.95, pairs=4, late_pairs=3) is ON_DECODE
    assert given_prompts(share=0.95, pairs=2) is ON_DECODE
    assert given_prompts(share=0.4, pairs=4, late_pairs=4) is PAIR


def test_pairs_that_are_nearly_all_late_end_whatever_plain_servers_would_miss() -> None:
    """Where prompts are more than both nodes can compute both shares are 1."""
    assert given_prompts(share=6.0, pairs=10, late_pairs=9) is PAIR
    assert given_prompts(share=6.0, pairs=10, late_pairs=10) is ON_DECODE


def test_a_first_token_that_would_come_far_too_late_is_no_pairs() -> None:
    """0.65 s, where 0.2 are aimed at; 0.55 are a pair's."""
    assert given_prompts(share=0.4, queue_bytes=50_000) is PAIR
    late, decode = measured("prefill", queue_bytes=60_000), measured("decode", tokens=10)
    give_prompts(late, 0.4)
    assert place(late, decode) is ON_DECODE
    assert (late.crowded_until_s, decode.crowded_until_s) == (0.0, 0.0)  # others are pairs, as few of them are late


def test_every_pair_is_counted_that_would_be_late() -> None:
    """By more than a quarter; also one that no other node may serve."""
    late, decode = measured("prefill", queue_bytes=LATE_BYTES + 10), measured("decode")
    for _ in range(3):
        assert place(late, decode, decode_may_compute=False, prefill_may_decode=False) is PAIR
    assert late.late_pairs.at(0.0) == 1.0

    prompt = measured("prefill", queue_bytes=LATE_BYTES - 10)
    for _ in range(3):
        assert place(prompt, measured("decode"), decode_may_compute=False) is PAIR
    assert prompt.late_pairs.at(0.0) == 0.0


def test_prompts_of_other_proxies_count_by_their_requests() -> None:
    """As many again; what they have at the moment says how many."""
    assert given_prompts(share=0.48, others=1) is ON_DECODE
    assert given_prompts(share=0.2, others=1) is PAIR


def test_prompts_of_many_decode_nodes_would_all_go_to_few_prefill_nodes() -> None:
    """All that comes is half of the two nodes' time: 0.67 of three in four, and 2 of one in four."""
    for share, placement in ((0.25, ON_DECODE), (0.75, PAIR)):
        late, decode = measured("prefill", queue_bytes=LATE_BYTES), measured("decode", tokens=10)
        for made in (late, decode):
            give_prompts(made, 0.5)
        assert place(late, decode, prefill_nodes_share=share) is placement


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
