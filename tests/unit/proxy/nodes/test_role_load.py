"""How much of each role's work a node has."""

from math import exp
from typing import Any

import pytest

from baton.contracts.node_info import NodeLoad
from baton.proxy.nodes.faded_line import MIN_SAMPLES
from baton.proxy.nodes.faded_rate import WINDOW_S
from baton.proxy.nodes.node import Node
from baton.proxy.nodes.role_load import decode_load, prefill_load
from tests.support.clock import Clock
from tests.unit.proxy.members import info, node
from tests.unit.proxy.nodes.test_registry import members

BYTE_S = 0.001  # of a prompt
FIRST_S, MORE_S = 0.02, 0.01  # between tokens of a stream alone, and more for each further one


def prefill_node() -> Node:
    made = node("prefill")
    made.clock = Clock()
    for size in (100, 200) * MIN_SAMPLES:
        made.prefill_time.learn(size, size * BYTE_S, made.clock())
    return made


class DecodeNode:
    """Reports once a second, for a while, what so many streams get, and then so many."""

    def __init__(self, **load: Any) -> None:
        self.node, self.clock, self.tokens, self.sum_s, self.load = node("decode"), Clock(), 0, 0.0, load
        self.node.clock = self.clock

    def run(self, *numbers: int, seconds: int = 40) -> None:
        for streams in (number for number in numbers for _ in range(seconds)):
            step_s = FIRST_S + MORE_S * (streams - 1)
            tokens = round(streams / step_s)
            self.clock.now_s += 1.0
            self.tokens, self.sum_s = self.tokens + tokens, self.sum_s + tokens * step_s
            counts: dict[str, Any] = {
                "running": streams,
                "inter_token_count": self.tokens,
                "inter_token_sum_s": self.sum_s,
            }
            self.node.describe(info("decode", load=NodeLoad(requests=0, prompt_bytes=0, **counts, **self.load)))


def test_prompts_that_come_and_that_wait_are_a_prefill_nodes_load() -> None:
    """Seconds of prompts over the window; those whose prompt is computed wait no more."""
    busy = prefill_node()
    busy.prompt_share.add(5.0, busy.clock())
    before = prefill_load(busy)
    end = busy.begin(2000)
    during = prefill_load(busy)
    busy.begin_stream(2000)

    assert before == pytest.approx(5.0 / WINDOW_S)
    assert during == pytest.approx((5.0 + 2000 * BYTE_S) / WINDOW_S)
    assert prefill_load(busy) == pytest.approx(before)
    end()


def test_of_a_node_that_has_had_few_prompts_nothing_is_known() -> None:
    assert prefill_load(node("prefill")) is None
    assert decode_load(node("decode")) is None
    assert decode_load(node("decode", load=NodeLoad(requests=0, prompt_bytes=0, waiting=1))) is None
    assert Node(url="http://unheard", role="decode").kv_usage is None


def test_tokens_are_a_decode_nodes_load() -> None:
    """Five streams keep three times what one alone waits for: that many tokens per second are 1. A target that is set counts in its place."""
    busy = DecodeNode()
    busy.run(*(1, 5) * 2)
    full, no_target_s = decode_load(busy.node), busy.node.target_inter_token_s
    busy.node.target_inter_token_s = FIRST_S + 9 * MORE_S
    within_target = decode_load(busy.node)
    busy.node.target_inter_token_s = no_target_s
    busy.run(1)
    alone = decode_load(busy.node)
    busy.clock.now_s += WINDOW_S

    assert alone is not None
    assert full == pytest.approx(1.0, rel=0.05)
    assert within_target == pytest.approx((5 / 0.06) / (10 / 0.11), rel=0.05)
    assert alone == pytest.approx((1 / FIRST_S) / (5 / (FIRST_S * 3)), rel=0.1)
    assert decode_load(busy.node) == pytest.approx(alone * exp(-1))


async def test_the_target_that_is_set_is_every_members() -> None:
    async with members(target_inter_token_s=0.05) as found:
        assert [node.target_inter_token_s for node in found.all()] == [0.05, 0.05]


@pytest.mark.parametrize(("prompts_s", "ratio"), [(0.0, 1.0), (5.0, 1 - 0.5 * exp(-1 / WINDOW_S)), (50.0, 0.1)])
def test_predictions_of_tokens_are_compared_with_what_was_seen(prompts_s: float, ratio: float) -> None:
    """What tokens waited for prompts, at most nine tenths, is taken off."""
    busy = DecodeNode()
    busy.run(*(1, 5) * 2)
    times = busy.node.times.inter_token_prediction
    seen, before = sum(times.counts), times.sum_s
    if prompts_s:
        busy.node.prompt_share.add(prompts_s, busy.clock())
        busy.node.begin_computing(100)
    busy.run(5, seconds=1)

    assert sum(times.counts) - seen == 1
    assert times.sum_s - before == pytest.approx(ratio, rel=0.02)


def test_a_node_that_always_has_as_many_streams_is_not_idle() -> None:
    """How much longer tokens would take with more is not known: only a target that is set says how much is too much."""
    busy = DecodeNode(kv_usage=0.1)
    busy.run(5)

    assert decode_load(busy.node) is None
    busy.node.target_inter_token_s = 0.03
    assert decode_load(busy.node) == pytest.approx((FIRST_S + 4 * MORE_S) / 0.03, rel=0.02)
    busy.clock.now_s += WINDOW_S  # of which it has streams for a third
    assert decode_load(busy.node) == pytest.approx((FIRST_S + 4 * MORE_S) / 0.03 * exp(-1), rel=0.05)
    busy.clock.now_s += 10 * WINDOW_S
    assert decode_load(busy.node) == pytest.approx(0.1 / 0.9)


@pytest.mark.parametrize("streams", [1, 5])
def test_a_node_that_has_as_many_streams_or_none_has_at_most_the_load_of_that_part_of_the_time(streams: int) -> None:
    """Behind a prefill node that cannot keep up: it must not seem unknown, or no node would ever come to help."""
    starved = DecodeNode()
    starved.run(streams)
    assert decode_load(starved.node) is None
    starved.clock.now_s += WINDOW_S

    sending = node("prefill")
    sending.clock = starved.clock
    sending.recall(starved.node)
    assert decode_load(sending) is None  # its streams are no demand for decode nodes
    assert decode_load(starved.node) == pytest.approx(exp(-1), rel=0.1)


def test_a_full_cache_is_enough() -> None:
    busy = DecodeNode(kv_usage=0.95)
    busy.run(5)

    assert decode_load(busy.node) == pytest.approx(0.95 / 0.9)


def test_tokens_that_a_node_made_in_another_role_are_no_load() -> None:
    busy = DecodeNode()
    busy.run(*(1, 5) * 2)
    before = decode_load(busy.node)
    again = DecodeNode()
    again.node.recall(busy.node)
    again.clock.now_s, again.sum_s, again.tokens = busy.clock.now_s, busy.sum_s + 1000.0, busy.tokens + 20_000
    again.run(1, seconds=1)

    assert before is not None
    assert decode_load(again.node) == pytest.approx(before * exp(-1 / WINDOW_S))


@pytest.mark.parametrize(("waiting", "load"), [(0, 1.0), (4, 0.5)])
def test_a_full_cache_is_a_decode_nodes_load(waiting: int, load: float) -> None:
    """Of requests that wait for their KV the room is only reserved: that is the prefill nodes' load."""
    busy = DecodeNode(kv_usage=0.9, waiting=waiting)
    busy.run(*(1, 4) * 2)
    busy.clock.now_s += 10 * WINDOW_S  # its tokens fade

    assert decode_load(busy.node) == pytest.approx(load)
