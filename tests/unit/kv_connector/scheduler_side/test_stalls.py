"""When D stands still for want of blocks, and which reservations are given back then."""

from typing import Any

import pytest

from baton.kv_connector.handoff.metadata import DecodeReport
from baton.kv_connector.scheduler_side import decode
from baton.kv_connector.scheduler_side.decode import NOT_STARTED, DecodeScheduler
from baton.kv_connector.scheduler_side.stalls import Stalls
from tests.unit.kv_connector.scheduler_fakes import BLOCK_TOKENS, MakeDecode, request, step_output

PATIENCE_S = 2.0


def stalled(stalls: Stalls, now: float, *, computes: bool = False) -> int:
    """One step in which `big` could be scheduled, with 9 blocks, and was not given them."""
    stalls.asked("big", 9)
    return stalls.step_ends(computes=computes, now=now)


def test_blocks_are_wanted_when_nothing_has_run_for_a_while() -> None:
    """Once, and again if that has not helped."""
    stalls = Stalls(PATIENCE_S)

    assert [stalled(stalls, now) for now in (10.0, 11.9, 12.0, 12.1, 14.0)] == [0, 0, 9, 0, 9]


def test_a_step_that_computes_something_begins_the_wait_again() -> None:
    """What runs ends some day, and gives its blocks back: that is a queue and no circle."""
    stalls = Stalls(PATIENCE_S)
    stalled(stalls, 10.0)
    stalled(stalls, 11.0, computes=True)

    assert (stalled(stalls, 12.5), stalled(stalls, 14.4), stalled(stalls, 14.5)) == (0, 0, 9)


def test_an_idle_node_is_not_stalled() -> None:
    """No request asks for blocks, or a request that asks is given them."""
    stalls = Stalls(PATIENCE_S)
    stalled(stalls, 10.0)
    stalls.step_ends(computes=False, now=11.0)
    wanted = []
    for now in (20.0, 30.0):
        stalls.asked("small", 1)
        stalls.placed("small")
        wanted.append(stalls.step_ends(computes=False, now=now))

    assert wanted == [0, 0]


def test_a_request_that_is_given_its_blocks_lacks_none(standstill: "Standstill") -> None:
    """Though nothing is computed: it is waited for."""
    cancelled = []
    for _ in range(2):
        standstill.side.match(standstill.requests["big"], 0)
        standstill.side.allocated(standstill.requests["big"], [[]], 0)
        cancelled += standstill.side.take_step(step_output()).cancelled

    assert (cancelled, standstill.side.lacking) == (["big"], 0)


class Standstill:
    """A decode node on which `big` lacks blocks, beside reservations of 4 blocks each; 12 of 32 are free."""

    def __init__(self, side: DecodeScheduler) -> None:
        self.side = side
        self.requests: dict[str, Any] = {}
        pool: Any = side._ledger.pool
        for number in range(5):
            self.add(f"early{number}", 4)
            made = self.requests[f"early{number}"]
            tokens, _ = self.side.match(made, 0)
            assert tokens is not None
            self.side.allocated(made, [pool.allocate(4)], tokens)
        self.side.take_step(step_output())

    def add(self, name: str, blocks: int) -> None:
        transfer_id = name.encode().hex().zfill(32)
        made = request("decode", blocks * BLOCK_TOKENS, request_id=name, transfer_id=transfer_id)
        self.requests[name] = made
        self.side.add_request(made)

    def start(self, name: str) -> None:
        """P computes its prompt."""
        self.side.update(DecodeReport(started={name.encode().hex().zfill(32)}), set())

    def stand_still(self, computed: int = 0) -> list[str]:
        """`big` is asked for, in two steps that compute nothing, and not placed; who gives back?"""
        cancelled: list[str] = []
        for _ in range(2):
            self.side.match(self.requests["big"], computed)
            cancelled += self.side.take_step(step_output()).cancelled
        return cancelled


@pytest.fixture
def standstill(make_decode: MakeDecode, monkeypatch: pytest.MonkeyPatch) -> Standstill:
    """Without patience; the big prompt has started, and needs 18 blocks."""
    monkeypatch.setattr(decode, "STALLED_S", 0.0)
    made = Standstill(make_decode())
    made.add("big", 18)
    made.start("big")
    return made


def test_only_as_many_reservations_are_given_back_as_are_needed(standstill: Standstill) -> None:
    """The newest first, and none whose prompt P computes. D computes those prompts itself."""
    standstill.start("early4")
    standstill.requests["big"].prompt_token_ids = [0] * (12 + 2 * 4) * BLOCK_TOKENS

    assert standstill.stand_still() == ["early3", "early2"]
    assert standstill.side.lacking == 0
    failures = standstill.side.snapshot()["failures"]
    assert [failure["reason"] for failure in failures] == 2 * [NOT_STARTED]
    assert standstill.side.match(standstill.requests["early3"], 0) == (0, False)
    assert standstill.side.match(standstill.requests["early1"], 0) == (0, False)  # it is received still


def test_one_is_given_back_if_vllm_lacks_more_blocks_than_we_know_of(standstill: Standstill) -> None:
    """It counts those that other requests will still need."""
    standstill.requests["big"].prompt_token_ids = [0] * 2 * BLOCK_TOKENS

    assert standstill.stand_still() == ["early4"]


def test_room_is_made_for_tokens_that_a_request_has_started_with(standstill: Standstill) -> None:
    """Its prompt is cached; it lacks a block for what follows."""
    standstill.requests["big"].output_tokens = 2 * BLOCK_TOKENS

    assert standstill.stand_still(computed=18 * BLOCK_TOKENS) == ["early4"]


@pytest.mark.parametrize(("blocks", "lacking"), [(18, 6), (2, 1)])
def test_nothing_is_given_back_for_prompts_that_have_started(standstill: Standstill, blocks: int, lacking: int) -> None:
    """How much is lacking is known; at least one block where vLLM wants more than we know of."""
    standstill.requests["big"].prompt_token_ids = [0] * blocks * BLOCK_TOKENS
    for number in range(5):
        standstill.start(f"early{number}")

    assert standstill.stand_still() == []
    assert standstill.side.lacking == lacking


def test_what_was_given_back_is_waited_for_before_more_is(standstill: Standstill) -> None:
    """Its peer may be slow to answer; reservations at other peers are not given up for that."""
    assert standstill.stand_still() == ["early4", "early3"]
    assert standstill.stand_still() == []
