import pytest

from baton.contracts.configuration.schema import TransferConfig
from tests.chaos.bounds import GIVEN_BACK_WITHIN_S, Bounds
from tests.chaos.phases import Phase
from tests.chaos.schedule import Cut, Kill, Stall, Victim, Way

BOUNDS = Bounds(transfer=TransferConfig(), request_timeout_s=30.0, service_s=4.0)


def kill(victim: Victim) -> Kill:
    """A kill."""
    phase = Phase.WAITING
    return Kill(number=0, victim=victim, phase=phase, engine_only=False, other_port=False, restart_after_s=0.0)


def stall(victim: Victim, lasts_s: float) -> Stall:
    """A stall."""
    return Stall(number=0, victim=victim, phase=Phase.WAITING, lasts_s=lasts_s)


def test_a_lost_prefill_node_costs_the_time_of_a_silent_peer() -> None:
    """D recomputes then; a stalled one is noticed in the same way, however long it lasts."""
    assert BOUNDS.answer_s(kill("prefill")) == 5.0 + 4.0
    assert BOUNDS.answer_s(stall("prefill", 60.0)) == 5.0 + 4.0


def test_a_killed_decode_node_or_proxy_is_noticed_at_once() -> None:
    """Their connections break."""
    assert BOUNDS.answer_s(kill("decode")) == 4.0
    assert BOUNDS.answer_s(kill("proxy")) < 4.0


def test_a_stalled_decode_node_is_bounded_by_the_requests_time_out_alone() -> None:
    """Its connections stay open and nothing else notices."""
    assert BOUNDS.answer_s(stall("decode", 8.0)) == 8.0 + 4.0
    assert BOUNDS.answer_s(stall("decode", 500.0)) == 31.0


def test_blocks_come_back_in_two_seconds_when_only_the_proxy_was_hit() -> None:
    """Plus a step; a lost peer takes its time-out and the quarantine on top."""
    assert BOUNDS.given_back_s(kill("proxy")) == pytest.approx(GIVEN_BACK_WITHIN_S + 1.0)
    cut = Cut(number=0, way=Way.DOWN, phase=Phase.WAITING, lasts_s=9.0)
    for fault in (kill("prefill"), stall("decode", 1.0), cut):
        assert BOUNDS.given_back_s(fault) == pytest.approx(5.0 + 2.0 + GIVEN_BACK_WITHIN_S + 1.0)


def test_nobody_answers_while_the_proxy_is_stopped() -> None:
    """Its time-outs stand still too; they count when it goes on."""
    assert BOUNDS.answer_s(stall("proxy", 8.0)) == 8.0 + 4.0
    assert BOUNDS.answer_s(stall("proxy", 60.0)) == 61.0


def test_who_comes_while_the_proxy_is_stopped_is_read_when_it_goes_on() -> None:
    """And has all of its time from then on, however long that was."""
    assert BOUNDS.later_s(stall("proxy", 8.0)) == 8.0 + 4.0
    assert BOUNDS.later_s(stall("proxy", 60.0)) == 60.0 + 4.0
