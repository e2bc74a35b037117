from itertools import pairwise
from math import inf

import msgspec
import pytest

from baton.loadtest.measures.record import TIMEOUT
from benchmarks.goodput.__main__ import parser, plan_mix
from benchmarks.goodput.idle import Idle, meets_slos
from benchmarks.goodput.mixes import AGENTIC, Part, mixes, plan_traffic
from benchmarks.goodput.report import Measured, count_plans, goodput_table, median_error
from tests.unit.loadtest.records import failed, record

IDLE = Idle(points=((100, 0.1, 0.02), (1000, 1.0, 0.03), (3000, 4.0, 0.03)), token_s=0.005)


@pytest.mark.parametrize(
    ("tokens", "ttft_s", "tpot_s"),
    [(10, 0.1, 0.02), (100, 0.1, 0.02), (550, 0.55, 0.025), (1000, 1.0, 0.03), (2000, 2.5, 0.03), (9000, 4.0, 0.03)],
)
def test_idle_times_lie_on_the_line_between_the_neighbours(tokens: int, ttft_s: float, tpot_s: float) -> None:
    """Beyond the ends there is no line: the times of the end hold."""
    assert IDLE.times_s(tokens) == pytest.approx((ttft_s, tpot_s))


@pytest.mark.parametrize(
    ("ttft_s", "gap_s", "tokens", "good"),
    [(0.49, 0.059, 100, True), (0.51, 0.059, 100, False), (0.49, 0.061, 100, False), (0.51, 0.061, 550, True)],
)
def test_both_slos_must_be_met(ttft_s: float, gap_s: float, tokens: int, good: bool) -> None:
    """Five times the first token and three times each later one of an idle server, for that length of prompt."""
    assert meets_slos(record(ttft_s=ttft_s, gaps=(gap_s, gap_s), input_tokens=tokens), IDLE) is good
    assert not meets_slos(failed(TIMEOUT, ttft_s=0.01, input_tokens=tokens), IDLE)


@pytest.mark.parametrize("mix", mixes(60.0))
def test_a_seed_gives_the_same_traffic_again(mix: str) -> None:
    """Arrivals and prompts, so that all setups get the same; another seed gives others."""
    one, same, other = (
        plan_traffic(mixes(60.0)[mix], IDLE.cost_s, load=1.4, seconds=240.0, seed=seed) for seed in (3, 3, 4)
    )

    assert one == same
    assert one.due_s != other.due_s
    assert one.asks[0][0].prompt != other.asks[0][0].prompt
    assert list(one.due_s) == sorted(one.due_s)
    assert one.due_s[-1] < 240.1


def test_a_rate_takes_the_place_of_the_load() -> None:
    """A load is divided by the work of a request; a rate also holds where kinds of different cost take turns."""
    load, rate = (parser().parse_args(["--seconds", "240", "--seed", "1", *more]) for more in ([], ["--rate", "2"]))

    assert plan_mix("agentic", IDLE, load).requests == pytest.approx(240 * 1.4 / IDLE.cost_s(AGENTIC), rel=0.05)
    assert plan_mix("chat", IDLE, rate).asks[0] != plan_mix("chat", IDLE, rate, 1).asks[0]  # of another round
    for mix in mixes(60.0):
        assert plan_mix(mix, IDLE, rate).requests == pytest.approx(480, rel=0.2)


def test_kinds_take_turns() -> None:
    """Documents come in every second stretch, or in bursts, ten seconds of thirty; chat in the other stretches, or always."""
    for mix, stretch_s, number, documents, chat in (("shifting", 20, 2, {1}, {0}), ("bursty", 10, 3, {1}, {0, 1, 2})):
        traffic = plan_traffic(mixes(20.0)[mix], IDLE.cost_s, load=2.0, seconds=120.0, seed=1)
        seen = [
            (asks[0].input_tokens, at_s // stretch_s % number)
            for at_s, asks in zip(traffic.due_s, traffic.asks, strict=True)
        ]

        assert {stretch for tokens, stretch in seen if tokens >= 1500} == documents
        assert {stretch for tokens, stretch in seen if tokens < 1500} == chat


def test_a_turn_repeats_the_turns_before_it() -> None:
    """And takes nothing from the answers, which may differ."""
    traffic = plan_traffic([Part(AGENTIC)], IDLE.cost_s, load=1.0, seconds=60.0, seed=1)
    script = traffic.script(0)
    turns = [next(script), *(script.send("an answer") for _ in range(AGENTIC.turns - 1))]

    assert turns == traffic.asks[0]
    assert all(tuple(later.prompt)[: one.input_tokens] == one.prompt for one, later in pairwise(turns))


METRICS = b"""baton_decisions_total{path="disaggregated",reason=""} 6.0
baton_decisions_total{path="local",reason="on_decode"} 2.0
baton_prefill_prediction_ratio_bucket{role="prefill",url="a",le="0.5"} 1.0
baton_prefill_prediction_ratio_bucket{role="prefill",url="a",le="1.0"} 3.0
baton_prefill_prediction_ratio_bucket{role="prefill",url="a",le="+Inf"} 3.0
baton_prefill_prediction_ratio_bucket{role="decode",url="b",le="1.0"} 1.0
baton_prefill_prediction_ratio_bucket{role="decode",url="b",le="+Inf"} 1.0
"""


def test_a_proxy_tells_plans_and_predictions() -> None:
    """Of all nodes together: one ratio of four below a half, and three of them at most 0.5 from 1."""
    plans, ratios = count_plans(METRICS)

    assert plans == {"disaggregated": 6, "local on_decode": 2}
    assert median_error(ratios) == pytest.approx(1 / 3)
    assert median_error({0.5: 0, 1.0: 2, 2.0: 4, inf: 4}) == pytest.approx(1 / 3)
    assert median_error({0.5: 1, inf: 3}) is None
    assert median_error(count_plans(b"")[1]) is None


def test_the_table_counts_what_was_not_answered() -> None:
    """Four requests were to be sent, three have records, one of those failed."""
    named = {"mix": "chat", "link_bit_s": 2e8, "setup": "baton", "plans": {"local on_decode": 1, "disaggregated": 3}}
    counted = {"seconds": 10.0, "requests": 4, "good": 1, "prediction_error": None, "other_cores": 0.0}
    one = msgspec.convert({**named, **counted, "records": [record(), record(), failed(TIMEOUT)]}, Measured)

    (line,) = goodput_table([one]).rows
    assert "; ".join(line[:-1]) == "chat; 200; baton; 4; 2; 25.0%; 0.10; 100.00; 100.00; 20.00; –; 0.00"
    assert line[-1] == "75% disaggregated, 25% local on_decode"


def test_rounds_of_a_setup_are_one_line() -> None:
    """With all requests together, and the worst and the best round."""
    named = {"mix": "chat", "link_bit_s": 0.0, "setup": "baton", "plans": {"disaggregated": 4}}
    counted = {"seconds": 10.0, "requests": 4, "prediction_error": None, "other_cores": 0.0, "records": [record()] * 4}
    rounds = [msgspec.convert({**named, **counted, "good": good}, Measured) for good in (1, 3)]
    other = msgspec.convert({**named, **counted, "good": 4, "setup": "plain"}, Measured)

    both, alone = goodput_table([rounds[0], other, rounds[1]]).rows
    assert (both[2:7], both[-1]) == (("baton", "8", "0", "50.0% (25–75)", "0.20"), "100% disaggregated")
    assert alone[2:6] == ("plain", "4", "0", "100.0%")
