"""What a node's prompts are expected to take."""

import pytest

from baton.proxy.nodes.faded_line import MAX_AGE_S, MIN_SAMPLES
from baton.proxy.nodes.prefill_time import PrefillTime


def fitted(*samples: tuple[float, float]) -> PrefillTime:
    """Fit some samples of bytes and seconds, each of them several times."""
    times = PrefillTime()
    for _ in range(MIN_SAMPLES):
        for prompt_bytes, time_s in samples:
            times.learn(prompt_bytes, time_s, 0.0)
    return times


def test_a_line_is_found() -> None:
    times = fitted((1000, 0.3), (2000, 0.5), (4000, 0.9))

    assert times.predict_s(3000, 1.0) == pytest.approx(0.7)
    assert times.predict_s(0, 1.0) == pytest.approx(0.1)


def test_nothing_is_predicted_from_few_samples() -> None:
    times = PrefillTime()
    for _ in range(MIN_SAMPLES - 1):
        times.learn(1000, 0.3, 0.0)

    assert times.predict_s(1000, 1.0) is None


def test_prompts_of_one_length_are_taken_to_cost_by_the_byte() -> None:
    """Twice the bytes, such as of two prompts one behind the other, take twice the time."""
    times = fitted((1000, 0.29), (1010, 0.31))

    assert times.predict_s(1005, 1.0) == pytest.approx(0.3, rel=0.01)
    assert times.predict_s(2010, 1.0) == pytest.approx(0.6, rel=0.01)


@pytest.mark.parametrize(
    ("samples", "predicted_s"),
    [(((1000, 0.9), (4000, 0.3)), 0.6), (((1000, 0.1), (4000, 1.0)), 0.4), (((0, 0.2), (0, 0.4)), 0.3)],
    ids=["longer prompts were sooner", "the line would cross zero", "nothing was new"],
)
def test_neither_part_of_a_time_is_negative(samples: tuple[tuple[float, float], ...], predicted_s: float) -> None:
    times = fitted(*samples)

    fixed_s, long_s = times.predict_s(0, 1.0), times.predict_s(1_000_000, 1.0)
    assert fixed_s is not None
    assert long_s is not None
    assert 0 <= fixed_s <= long_s
    assert times.predict_s(2000, 1.0) == pytest.approx(predicted_s, rel=0.3)


def test_what_a_node_does_now_counts_more_than_what_it_did() -> None:
    """A node that has become slower, or is another process on another machine."""
    times = fitted(*[(size, size * 1e-4) for size in (1000, 2000, 3000)] * 10)
    for _ in range(60):
        for size in (1000, 2000, 3000):
            times.learn(size, size * 3e-4, 0.0)

    assert times.predict_s(2000, 1.0) == pytest.approx(0.6, rel=0.1)


def test_an_old_line_is_forgotten() -> None:
    times = fitted((1000, 0.3), (2000, 0.5))

    assert times.predict_s(1000, MAX_AGE_S + 1) is None
    for _ in range(MIN_SAMPLES):
        assert times.predict_s(1000, MAX_AGE_S + 2) is None
        times.learn(1000, 0.05, MAX_AGE_S + 1)
    assert times.predict_s(1000, MAX_AGE_S + 2) == pytest.approx(0.05)  # it was slow, and no prompt went there for it


@pytest.mark.parametrize("prompt_bytes", [1e15, 1e200, float("inf"), float("nan"), -1.0])
def test_amounts_that_no_node_has_are_not_believed(prompt_bytes: float) -> None:
    times = fitted((1000, 0.3), (2000, 0.5))
    times.learn(prompt_bytes, 0.3, 0.0)

    assert times.predict_s(3000, 1.0) == pytest.approx(0.7)


def test_a_limit_does_not_trust_the_line() -> None:
    """Times that scatter have made it level."""
    times = fitted((1000, 0.3), (3000, 0.3))

    assert times.predict_s(100_000, 1.0) == pytest.approx(0.3)
    assert times.limit_s(100_000) == pytest.approx(15.0, rel=0.02)
    assert PrefillTime().limit_s(1) == 0.0
