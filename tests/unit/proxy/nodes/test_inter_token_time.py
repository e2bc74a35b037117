"""The time between tokens, by what nodes report."""

import pytest

from baton.contracts.node_info import NodeLoad
from baton.proxy.nodes.faded_line import MAX_AGE_S, MIN_SAMPLES
from baton.proxy.nodes.inter_token_time import MAX_RUNNING, InterTokenTime

NODE = NodeLoad(requests=0, prompt_bytes=0)


def report(count: int | None, sum_s: float | None, running: int | None = 1) -> NodeLoad:
    return NodeLoad(requests=0, prompt_bytes=0, running=running, inter_token_count=count, inter_token_sum_s=sum_s)


def fitted(*samples: tuple[int, float], share: float | None = None) -> InterTokenTime:
    """Fit mean times at numbers of streams, each of them several times."""
    times, count, sum_s = InterTokenTime(), 0, 0.0
    times.learn(report(0, 0.0), share, 0.0)
    for _ in range(MIN_SAMPLES):
        for running, mean_s in samples:
            count, sum_s = count + 10, sum_s + 10 * mean_s
            times.learn(report(count, sum_s, running), share, 0.0)
    return times


def test_a_line_over_the_streams_is_found() -> None:
    times = fitted((1, 0.02), (5, 0.06))

    assert times.predict_s(3, 1.0) == pytest.approx(0.04)
    assert times.predict_s(0, 1.0) == pytest.approx(0.02)  # no stream waits less than one alone
    assert times.predict_s(3, MAX_AGE_S + 1) is None
    assert fitted((1, 0.04), share=0.5).predict_s(1, 0.0) == pytest.approx(
        0.02
    )  # what they waited for prompts is taken off


@pytest.mark.parametrize(
    ("further", "at_s"),
    [
        # It gets streams whatever is thought of it, and reports of alike many would have no slope.
        ([report(10_000, 500.0, 5), report(10_010, 500.6, 5)], MAX_AGE_S + 1),
        # One such report would make the line level for thousands of others.
        ([report(1 << 20, 1e5, MAX_RUNNING + 1)], 0.0),
        ([report(1000, 1e300)], 0.0),
    ],
    ids=["after a lull", "more streams than a node can have", "a time that no node has"],
)
def test_a_line_is_kept(further: list[NodeLoad], at_s: float) -> None:
    times = fitted((1, 0.02), (5, 0.06))
    for number, each in enumerate(further):
        times.learn(each, None, at_s + number)

    assert times.predict_s(3, at_s + 2) == pytest.approx(0.04, rel=0.2 if at_s else 1e-6)
    assert times.predict_s(1, at_s + 2) == pytest.approx(0.02, rel=0.2 if at_s else 1e-6)


def test_without_a_spread_of_streams_the_time_is_taken_to_be_level() -> None:
    """So that none is taken for slow: a target is a multiple of one stream's time."""
    times = fitted((10, 0.05))

    assert times.predict_s(1, 0.0) == times.predict_s(20, 0.0) == pytest.approx(0.05)


def test_a_node_that_makes_few_tokens_between_two_reports_is_learned_of() -> None:
    times = InterTokenTime()

    assert [times.learn(report(count, count * 0.3), None, 0.0) for count in range(17)] == [None] * 8 + [
        pytest.approx(0.3),
        *[None] * 7,
        pytest.approx(0.3),
    ]


def test_counters_that_go_back_and_nodes_that_do_not_say_teach_nothing() -> None:
    """As after a restart, or with the counters of another of its processes."""
    times = InterTokenTime()
    reports = (report(100, 1.0), report(50, 0.5), report(70, 0.4), NODE, None, report(90, None))

    assert [times.learn(each, None, 0.0) for each in reports] == [None] * len(reports)
    assert times.learn(report(80, 0.9), None, 0.0) == pytest.approx(0.05)


@pytest.mark.parametrize(("share", "alone_s"), [(None, 0.0254), (0.0, 0.02), (0.5, 0.02)])
def test_tokens_beside_prompts_teach_nothing_of_streams_alone(share: float | None, alone_s: float) -> None:
    """What they took more is not known well enough, even where it is not 0: it would be taken for the streams' own."""
    times, count, sum_s = InterTokenTime(), 0, 0.0
    times.learn(report(0, 0.0), None, 0.0)
    for mean_s, at_share in [(0.02, None)] * MIN_SAMPLES + [(0.03, share)] * MIN_SAMPLES:
        count, sum_s = count + 10, sum_s + 10 * mean_s
        assert times.learn(report(count, sum_s), at_share, 0.0) in (None, pytest.approx(mean_s))

    assert times.predict_s(1, 0.0) == pytest.approx(alone_s, rel=0.05)
    assert times.tokens_per_s(0.0) == pytest.approx(16.0)


def test_a_line_that_was_fitted_beside_prompts_is_mended_beside_prompts() -> None:
    """They only add to the time between two tokens."""
    times = fitted((1, 0.09), share=0.0)
    for number in range(50):
        times.learn(report(90 + 10 * number, 10 + 0.2 * number), 0.5, 0.0)

    assert times.predict_s(1, 0.0) == pytest.approx(0.0257, rel=0.02)


def test_more_tokens_than_a_node_can_make_are_not_counted() -> None:
    """Those of a report that comes late are spread over the time since the last one."""
    times = fitted((1, 0.02))
    before = times.tokens_per_s(0.0)
    times.learn(report(1 << 53, 1e5), None, 1.0)
    assert times.tokens_per_s(0.0) == before

    late = fitted((1, 0.02))
    late.learn(report(80 + 100_000, 80.0), None, 40.0)
    assert late.tokens_per_s(40.0) == pytest.approx(2500, rel=0.02)

    idle = fitted((1, 0.02))
    idle.learn(report(80, 1.6), None, 39.0)
    idle.learn(report(180, 3.6), None, 40.0)
    assert idle.tokens_per_s(40.0) == pytest.approx(10, rel=0.02)


def test_a_prompt_counts_until_the_next_sample() -> None:
    """Also where a report without one comes in between, with too few tokens for a sample."""
    times = fitted((1, 0.02))
    times.learn(None, 0.3, 0.0)
    times.learn(report(81, 1.7), None, 0.0)
    assert times.learn(report(100, 3.6), None, 0.0) == pytest.approx(0.1)
    assert times.predict_s(1, 0.0) == pytest.approx(0.02)

    assert times.learn(report(120, 5.6), None, 0.0) == pytest.approx(0.1)
    assert times.predict_s(1, 0.0) == pytest.approx(0.0212, abs=0.0001)


def test_one_sample_that_was_disturbed_says_little_of_what_a_stream_adds() -> None:
    """A node that stays slow is followed."""
    times = fitted((1, 0.02))
    times.learn(report(100, 21.6, 3), None, 0.0)
    assert times.predict_s(3, 0.0) == pytest.approx(0.03, rel=0.01)

    for number in range(1, 150):
        times.learn(report(100 + 10 * number, 21.6 + number, 3), None, 0.0)
    assert times.predict_s(3, 0.0) == pytest.approx(0.1, rel=0.3)
