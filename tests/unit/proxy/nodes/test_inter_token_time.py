"""The time between tokens, by what nodes report."""

import pytest

from baton.contracts.node_info import NodeLoad
from baton.proxy.nodes.faded_line import MAX_AGE_S, MIN_SAMPLES
from baton.proxy.nodes.inter_token_time import MAX_RUNNING, InterTokenTime

NODE = NodeLoad(requests=0, prompt_bytes=0)


def report(count: int | None, sum_s: float | None, running: int | None = 1) -> NodeLoad:
    return NodeLoad(requests=0, prompt_bytes=0, running=running, inter_token_count=count, inter_token_sum_s=sum_s)


def fitted(*samples: tuple[int, float], share: float = 0.0) -> InterTokenTime:
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


def test_without_a_spread_of_streams_the_time_is_taken_to_be_level() -> None:
    """So that none is taken for slow: a target is a multiple of one stream's time."""
    times = fitted((10, 0.05))

    assert times.predict_s(1, 0.0) == times.predict_s(20, 0.0) == pytest.approx(0.05)


def test_after_a_lull_the_line_is_what_it_was() -> None:
    """A node gets streams whatever is thought of it, and reports of alike many would have no slope."""
    times = fitted((1, 0.02), (5, 0.06))
    times.learn(report(10_000, 500.0, 5), 0.0, MAX_AGE_S + 1)  # counted from here
    times.learn(report(10_010, 500.6, 5), 0.0, MAX_AGE_S + 2)

    assert times.predict_s(1, MAX_AGE_S + 3) == pytest.approx(0.02, rel=0.2)


def test_more_streams_than_a_node_can_have_are_not_believed() -> None:
    """One such report would make the line level for thousands of others."""
    times = fitted((1, 0.02), (5, 0.06))
    times.learn(report(1 << 20, 1e5, MAX_RUNNING + 1), 0.0, 0.0)

    assert times.predict_s(3, 0.0) == pytest.approx(0.04)


def test_what_tokens_waited_for_prompts_is_taken_off() -> None:
    assert fitted((1, 0.04), share=0.5).predict_s(1, 0.0) == pytest.approx(0.02)


def test_a_node_that_makes_few_tokens_between_two_reports_is_learned_of() -> None:
    times = InterTokenTime()

    assert [times.learn(report(count, count * 0.3), 0.0, 0.0) for count in range(17)] == [None] * 8 + [
        pytest.approx(0.3),
        *[None] * 7,
        pytest.approx(0.3),
    ]


def test_times_that_no_node_has_are_not_believed() -> None:
    times = fitted((1, 0.02), (5, 0.06))
    times.learn(report(1000, 1e300), 0.0, 0.0)

    assert times.predict_s(3, 1.0) == pytest.approx(0.04)


def test_counters_that_go_back_and_nodes_that_do_not_say_teach_nothing() -> None:
    """As after a restart, or with the counters of another of its processes."""
    times = InterTokenTime()
    reports = (report(100, 1.0), report(50, 0.5), report(70, 0.4), NODE, None, report(90, None))

    assert [times.learn(each, 0.0, 0.0) for each in reports] == [None] * len(reports)
    assert times.learn(report(80, 0.9), 0.0, 0.0) == pytest.approx(0.05)


@pytest.mark.parametrize(("share", "alone_s"), [(0.2, 0.045), (0.21, 0.02)])
def test_tokens_beside_many_prompts_teach_nothing_of_streams_alone(share: float, alone_s: float) -> None:
    """What they took more is not known well enough: it would be taken for the streams' own."""
    times, count, sum_s = InterTokenTime(), 0, 0.0
    times.learn(report(0, 0.0), 0.0, 0.0)
    for mean_s, at_share in [(0.02, 0.0)] * MIN_SAMPLES + [(0.1, share)] * MIN_SAMPLES:
        count, sum_s = count + 10, sum_s + 10 * mean_s
        assert times.learn(report(count, sum_s), at_share, 0.0) in (None, pytest.approx(mean_s))

    assert times.predict_s(1, 0.0) == pytest.approx(alone_s, rel=0.2)
    assert times.tokens_per_s(0.0) == pytest.approx(16.0)
