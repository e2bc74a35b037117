"""Whether a late first token stays a pair's, by the answers that would miss their targets on pairs and on plain servers."""

import pytest

from baton.contracts.node_info import NodeLoad
from baton.proxy.nodes.faded_line import MIN_SAMPLES
from baton.proxy.nodes.faded_rate import PromptRate
from baton.proxy.nodes.node import Node
from baton.proxy.planning.placement import Placement, Targets
from tests.unit.proxy.members import node
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
    report,
)


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
