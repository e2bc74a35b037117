"""What a node's prompts are expected to take."""

import pytest

from baton.proxy.nodes.prefill_time import MIN_SAMPLES, PrefillTime


def fitted(*samples: tuple[float, float]) -> PrefillTime:
    """Fit some samples of bytes and seconds, each of them several times."""
    times = PrefillTime()
    for _ in range(MIN_SAMPLES):
        for prompt_bytes, time_s in samples:
            times.learn(prompt_bytes, time_s)
    return times


def test_a_line_is_found() -> None:
    times = fitted((1000, 0.3), (2000, 0.5), (4000, 0.9))

    assert times.predict_s(3000) == pytest.approx(0.7)
    assert times.fixed_s == pytest.approx(0.1)
    assert times.per_byte_s == pytest.approx(0.0002)


def test_nothing_is_predicted_from_few_samples() -> None:
    times = PrefillTime()
    for _ in range(MIN_SAMPLES - 1):
        times.learn(1000, 0.3)

    assert times.predict_s(1000) is None


def test_prompts_of_one_length_are_taken_to_cost_by_the_byte() -> None:
    """Twice the bytes, such as of two prompts one behind the other, take twice the time."""
    times = fitted((1000, 0.29), (1010, 0.31))

    assert times.predict_s(1005) == pytest.approx(0.3, rel=0.01)
    assert times.predict_s(2010) == pytest.approx(0.6, rel=0.01)


@pytest.mark.parametrize(
    ("samples", "predicted_s"),
    [(((1000, 0.9), (4000, 0.3)), 0.6), (((1000, 0.1), (4000, 1.0)), 0.4), (((0, 0.2), (0, 0.4)), 0.3)],
    ids=["longer prompts were sooner", "the line would cross zero", "nothing was new"],
)
def test_neither_part_of_a_time_is_negative(samples: tuple[tuple[float, float], ...], predicted_s: float) -> None:
    times = fitted(*samples)

    assert times.per_byte_s >= 0
    assert times.fixed_s >= 0
    assert times.predict_s(2000) == pytest.approx(predicted_s, rel=0.3)


def test_what_a_node_does_now_counts_more_than_what_it_did() -> None:
    """A node that has become slower, or is another process on another machine."""
    times = fitted(*[(size, size * 1e-4) for size in (1000, 2000, 3000)] * 10)
    for _ in range(60):
        for size in (1000, 2000, 3000):
            times.learn(size, size * 3e-4)

    assert times.predict_s(2000) == pytest.approx(0.6, rel=0.1)
