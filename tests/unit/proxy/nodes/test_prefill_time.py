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
    [(((1000, 0.9), (4000, 0.3)), 0.8), (((1000, 0.1), (4000, 1.0)), 0.4), (((0, 0.2), (0, 0.4)), 0.3)],
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


def test_long_prompts_do_not_spoil_what_is_expected_of_short_ones() -> None:
    """Their times grow faster than their length: a line of the least absolute errors expects three times what short ones take."""
    seen_s = {size: 1e-5 * size + 2e-9 * size**2 for size in (300, 600, 1200, 12_000)}
    times = fitted(*seen_s.items())

    assert all(0.5 < (times.predict_s(size, 1.0) or 0.0) / time_s < 2 for size, time_s in seen_s.items())


def test_one_stall_counts_as_four_times_what_was_expected() -> None:
    stalled, slower = (fitted((1000, 0.1), (2000, 0.2)) for _ in range(2))
    stalled.learn(1000, 60.0, 0.0)
    slower.learn(1000, 0.4, 0.0)

    assert stalled.predict_s(1000, 1.0) == pytest.approx(slower.predict_s(1000, 1.0))
    assert stalled.spread == pytest.approx(slower.spread)


def test_a_prompt_that_was_sooner_than_any_counts_as_a_quarter_of_what_was_expected() -> None:
    cached, sooner = (fitted((1000, 0.1), (2000, 0.2)) for _ in range(2))
    cached.learn(2000, 0.001, 0.0)
    sooner.learn(2000, 0.05, 0.0)

    assert cached.predict_s(2000, 1.0) == sooner.predict_s(2000, 1.0)


def test_the_spread_is_the_share_that_predictions_were_wrong_by() -> None:
    """Short prompts and long ones, each a fifth sooner or later than expected."""
    times = fitted((1000, 0.08), (1000, 0.12), (4000, 0.32), (4000, 0.48))

    assert times.spread == pytest.approx(0.2, rel=0.1)


def test_the_spread_is_of_predictions_and_of_no_times_before_the_first_one() -> None:
    times = PrefillTime()
    for size in (1000, 2000) * (MIN_SAMPLES // 2):
        times.learn(size, size * 1e-4, 0.0)
    times.learn(1000, 0.12, 0.0)

    assert times.spread == pytest.approx(0.2)


@pytest.mark.parametrize(("times_slower", "samples"), [(10, 100), (0.1, 250)])
def test_a_node_that_becomes_another_one_is_followed(times_slower: float, samples: int) -> None:
    """As soon for short prompts as for long ones."""
    times = fitted(*[(size, 0.02 + size * 1e-5) for size in (100, 1000, 12_000)] * 10)
    for number in range(samples):
        size = (100, 1000, 12_000)[number % 3]
        times.learn(size, (0.02 + size * 1e-5) * times_slower, 0.0)

    for size in (100, 1000, 12_000):
        assert times.predict_s(size, 1.0) == pytest.approx((0.02 + size * 1e-5) * times_slower, rel=0.25)


@pytest.mark.parametrize("first_s", [0.0, 0.005, 5.0, 60.0])
def test_an_odd_first_time_is_soon_forgotten(first_s: float) -> None:
    """One of a prompt that was in a cache, or of a node that was compiling."""
    times = PrefillTime()
    times.learn(12_000, first_s, 0.0)
    for size in (11_000, 12_000, 13_000) * 13:
        times.learn(size, 0.5, 0.0)

    assert times.predict_s(12_000, 1.0) == pytest.approx(0.5, rel=0.25)


def test_what_a_byte_takes_is_not_known_before_anything_is_predicted() -> None:
    """One sample has its fixed part in its bytes."""
    times = PrefillTime()
    for _ in range(MIN_SAMPLES):
        assert times.known_per_byte_s(0.0) == 0.0
        times.learn(100, 0.02, 0.0)

    assert times.known_per_byte_s(0.0) == pytest.approx(2e-4)
    assert times.known_per_byte_s(MAX_AGE_S + 1) == 0.0


def test_an_old_line_is_forgotten() -> None:
    times = fitted((1000, 0.3), (2000, 0.5))

    assert times.predict_s(1000, MAX_AGE_S + 1) is None
    for _ in range(MIN_SAMPLES):
        assert times.predict_s(1000, MAX_AGE_S + 2) is None
        times.learn(1000, 0.2, MAX_AGE_S + 1)
    assert times.predict_s(1000, MAX_AGE_S + 2) == pytest.approx(0.2)  # it was slow, and no prompt went there for it


@pytest.mark.parametrize("prompt_bytes", [1e15, 1e200, float("inf"), float("nan"), -1.0])
def test_amounts_that_no_node_has_are_not_believed(prompt_bytes: float) -> None:
    times = fitted((1000, 0.3), (2000, 0.5))
    times.learn(prompt_bytes, 0.3, 0.0)

    assert times.predict_s(3000, 1.0) == pytest.approx(0.7)


def test_a_limit_does_not_trust_the_line() -> None:
    """Times that scatter have made it level."""
    times = fitted((1000, 0.3), (3000, 0.3))

    assert times.predict_s(100_000, 1.0) == pytest.approx(0.3)
    assert times.limit_s(100_000) == pytest.approx(15.0, rel=0.05)
    assert PrefillTime().limit_s(1) == 0.0
