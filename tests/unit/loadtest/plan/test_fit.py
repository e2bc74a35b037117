import random

import msgspec
import pytest

from baton.loadtest.errors import RunError
from baton.loadtest.plan.calibration import Calibration, Decode, Link, Prefill
from baton.loadtest.plan.rows import (
    MIXED_BUSY,
    PrefillCell,
    Row,
    between_first_tokens_s,
    calibrate,
    decode_rows,
    fit,
    mixed_rate_per_s,
    with_overheads,
)
from tests.unit.loadtest.plan.made import calibration, demand, poisson, run, step_by_step
from tests.unit.loadtest.records import record

NAMES = ("a", "b", "c")


def rows(truth: tuple[float, ...], count: int) -> list[Row]:
    rng = random.Random(3)
    drawn = [(1.0, rng.uniform(10, 5000), rng.uniform(1e4, 1e7)) for _ in range(count)]
    return [Row(values, sum(a * b for a, b in zip(truth, values, strict=True))) for values in drawn]


def test_known_coefficients_are_recovered() -> None:
    """Exactly, although columns differ by seven orders of magnitude. Of a noisy time it is the mean: slow ones count as much."""
    found = fit(rows((0.01, 2e-4, 3e-8), 9), NAMES, "x")

    assert found.coefficients == pytest.approx((0.01, 2e-4, 3e-8), rel=1e-6)
    assert found.quality.r_squared == pytest.approx(1.0)
    assert found.quality.worst_error == pytest.approx(0.0, abs=1e-9)
    assert found.quality.rows == 9
    noisy = fit([Row((1.0,), 1.0)] * 9 + [Row((1.0,), 2.0)], ("a",), "x")
    assert noisy.coefficients == pytest.approx((1.1,), rel=1e-3)


def test_no_coefficient_is_negative_unless_it_may_be() -> None:
    """What would be below 0 is 0, and the others explain what they can. A column of zeros has no part."""
    found = fit([Row((1.0, float(x)), 10 - x) for x in range(5)], ("a", "b"), "x")
    rising = [Row((1.0, value), 5.0 * value - 2.0) for value in (1.0, 2.0, 3.0, 4.0)]

    assert found.coefficients[1] == 0.0
    assert 7 < found.coefficients[0] < 9
    assert fit(rising, ("it", "slope"), "x", signed={"it"}).coefficients == pytest.approx((-2.0, 5.0))
    assert fit(rising, ("it", "slope"), "x").coefficients[0] == 0.0
    assert fit([Row((1.0, 0.0), 5.0)] * 4, ("a", "b"), "x").coefficients == pytest.approx((5.0, 0.0))


def test_measurements_that_do_not_suffice_are_refused() -> None:
    """As many as coefficients always fit, and say nothing; those that tell no coefficients apart are named."""
    with pytest.raises(RunError, match="decode: 3 measurements are too few for 3 coefficients"):
        fit(rows((1, 1, 1), 3), NAMES, "decode")
    with pytest.raises(RunError, match="do not tell b from a: vary lengths and users more"):
        fit([Row((1.0, 5.0), 3.0)] * 9, ("a", "b"), "prefill")


def test_the_rhythm_of_two_users() -> None:
    """The mean between first tokens over whole rounds, without the first one."""
    records = [record(at, ttft_s=0.5) for at in (0.0, 0.7, 1.0, 1.2, 1.4)]

    assert between_first_tokens_s(records, 2) == pytest.approx(0.2)
    with pytest.raises(RunError, match="too few answers to 2 users"):
        between_first_tokens_s(records[:4], 2)


def test_a_decode_row_counts_what_ran_at_the_same_time() -> None:
    """By step: another one for six of ten, the one that ended with its first token included; an arrival inside."""
    gaps = (0.1,) * 10
    one = record(0.0, ttft_s=0.0001, gaps=gaps, input_tokens=100)
    other = record(0.5, ttft_s=0.0001, gaps=gaps, input_tokens=40)

    first, second = decode_rows([[one, other]])

    assert first.measured == pytest.approx(0.1)
    assert first.values == pytest.approx((1.0, 1.6, 0.6, 105.5 + 0.6 * 45.5, 0.1), rel=1e-3)
    assert second.values == pytest.approx((1.0, 1.5, 0.5, 45.5 + 0.5 * 105.5, 0.0), rel=1e-3)


def test_a_calibration_of_simulated_nodes_finds_what_they_were_given() -> None:
    """The whole way: measured requests → equations → coefficients."""
    truth = calibration(
        prefill=Prefill(step_s=0.02, prompt_s=0.007, token_s=2e-4, token_context_s=1e-7, max_num_batched_tokens=4096),
        decode=Decode(step_s=0.02, sequence_s=0.003, several_s=0.006, context_token_s=1e-6, arrival_s=0.005),
        link=Link(gbit_s=1, kv_bytes_per_token=4096, layers=8),
        overhead_s=0.015,
    )
    cells = []
    for tokens in (200, 700, 1500, 3000):
        alone = run([demand(at * 10.0, tokens) for at in range(5)], truth).records
        in_line = {2: run([demand(tokens=tokens)] * 10, with_steps_of(truth, tokens)).records}
        if 4 * tokens <= truth.prefill.max_num_batched_tokens:
            in_line[8] = run([demand(tokens=tokens)] * 40, with_steps_of(truth, 4 * tokens)).records
        cells.append(PrefillCell(tokens, alone, in_line))
    rng = random.Random(1)
    decode = [
        step_by_step([demand(at, tokens, rng.randint(20, 60)) for at in sorted(starts)], truth.decode)
        for tokens in (200, 3000)
        for users in (1, 2, 5, 9, 14)
        for starts in [[rng.uniform(0, 3) for _ in range(users)]]
    ]

    found = calibrate(cells, decode, Calibration(prefill=truth.prefill, decode=truth.decode, link=truth.link))

    decode_s, true_s = msgspec.structs.asdict(found.decode), msgspec.structs.asdict(truth.decode)
    for name, rel in (("arrival_s", 0.15), ("step_s", 0.05)):
        assert decode_s.pop(name) == pytest.approx(true_s.pop(name), rel=rel)
    assert decode_s == pytest.approx(true_s, rel=0.1)
    assert msgspec.structs.asdict(found.prefill) == pytest.approx(msgspec.structs.asdict(truth.prefill), rel=0.05)
    assert found.overhead_s == pytest.approx(0.015, rel=0.1)
    assert found.fits["prefill"].mean_error < 0.01
    assert found.fits["decode"].mean_error < 0.03


@pytest.mark.parametrize(("lone_s", "queued_s", "busy_s"), [(0.015, 0.002, 0.004), (-0.02, 0.06, 0.03)])
def test_overheads_are_what_a_mixed_load_shows_above_its_steps(lone_s: float, queued_s: float, busy_s: float) -> None:
    """Below 0 as well: in line a prompt may cost more than its first token waits for. Fitted ones are not built upon."""
    truth = calibration(
        prefill=Prefill(step_s=0.05, token_s=1e-4),
        decode=Decode(step_s=0.01, sequence_s=0.001),
        overhead_s=lone_s,
        overhead_queued_s=queued_s,
        overhead_busy_s=busy_s,
    )
    mixed = run(poisson(6, 120, tokens=50, output=20), truth).records
    fitted = msgspec.structs.replace(truth, overhead_s=0.5, overhead_busy_s=0.0)

    found = with_overheads(fitted, [mixed])

    assert found.overhead_s == pytest.approx(lone_s)
    assert found.overhead_queued_s == pytest.approx(queued_s)
    assert found.overhead_busy_s == pytest.approx(busy_s)
    assert found.prefill == truth.prefill


def test_overheads_that_cannot_be_told_apart_are_not_guessed_at() -> None:
    """A mean of none, or of a few, would be chance; nodes that are always busy together share one overhead."""
    lonely = calibration(decode=Decode(step_s=0.01, sequence_s=0.001), overhead_s=0.02, overhead_busy_s=0.5)
    found = with_overheads(lonely, [run([demand(0.0, 50, 30)], lonely).records] * 9)

    assert found.overhead_s == pytest.approx(0.02)
    assert found.overhead_busy_s == 0.0
    truth = calibration(
        prefill=Prefill(step_s=0.05, token_s=0.0, max_num_seqs=1),
        decode=Decode(step_s=0.001, sequence_s=0.0),
        overhead_s=0.02,
        overhead_queued_s=0.01,
    )
    pairs = [demand(at + late_s, 50, 200) for at in range(20) for late_s in (0.0, 0.001)]

    found = with_overheads(truth, [run(pairs, truth).records])

    assert found.overhead_s == pytest.approx(0.02)
    assert found.overhead_queued_s == pytest.approx(0.01)
    assert found.overhead_busy_s == 0.0


def test_the_mixed_load_keeps_the_busier_node_as_busy_as_was_asked() -> None:
    for answer, busy in ((2, "prefill_busy"), (60, "decode_busy")):
        found = calibration(prefill=Prefill(step_s=0.03, token_s=1e-4, max_num_batched_tokens=512))
        rate_per_s = mixed_rate_per_s(found, 300, answer)
        outcome = run([demand(at / rate_per_s, 300, answer) for at in range(200)], found)

        assert getattr(outcome, busy) == pytest.approx(MIXED_BUSY, rel=0.05)


def with_steps_of(truth: Calibration, tokens: int) -> Calibration:
    """The same nodes, but a step holds one prompt, or four: that is how two users, or eight, see them."""
    prefill = msgspec.structs.replace(truth.prefill, max_num_batched_tokens=tokens)
    return msgspec.structs.replace(truth, prefill=prefill)


def test_two_users_who_never_meet_on_the_prefill_node_are_no_measurement() -> None:
    """A prompt takes less there than the rest: the share of it is unknown, and that is said."""
    truth = calibration(prefill=Prefill(step_s=0.001, token_s=0.0), overhead_s=0.5)
    alone = run([demand(at * 10.0) for at in range(5)], truth).records
    turns = [demand(at * 0.2556) for at in range(12)]
    cells = [PrefillCell(100, alone, {2: run(turns, truth).records})] * 3
    decode = [run([demand(0.0, tokens, 40)] * users, truth).records for tokens in (10, 90) for users in (1, 2, 3)]

    with pytest.raises(RunError, match="use longer prompts"):
        calibrate(cells, decode, Calibration(prefill=truth.prefill, decode=Decode(step_s=0.01, sequence_s=0.0)))
