"""Whether a decode node is sooner than prefill nodes that are all busy."""

from typing import Literal

import pytest

from baton.proxy.nodes.node import Node
from baton.proxy.nodes.prefill_time import MIN_SAMPLES
from baton.proxy.planning.prefill_estimate import is_sooner_on_decode
from baton.proxy.routing.router import Choice
from tests.unit.proxy.members import node

PER_BYTE_S = 1e-5


def measured(role: Literal["prefill", "decode"], *, per_byte_s: float = PER_BYTE_S, busy_bytes: int = 0) -> Node:
    """Make a node whose time is known, with so much to compute or, on a decode node, with one stream of such a prompt."""
    made = node(role)
    for prompt_bytes in (1000, 9000) * MIN_SAMPLES:
        made.prefill_time.learn(prompt_bytes, prompt_bytes * per_byte_s, made.clock())
    if busy_bytes:
        made.begin(busy_bytes)
    return made


def is_sooner(decode: Node, prefill: Node, *, new_bytes: int = 5000, known_bytes: int = 0) -> bool:
    """`known_bytes` of the prompt are in the prefill node's cache."""
    there = Choice(prefill, new_bytes - known_bytes)
    return is_sooner_on_decode(Choice(decode, new_bytes), there, max_stream_delay_s=0.1)


def test_a_decode_node_takes_what_would_wait_for_a_busy_prefill_node() -> None:
    """Here 0.05 s, there 0.05 behind 0.05."""
    assert is_sooner(measured("decode"), measured("prefill", busy_bytes=5000))


def test_a_decode_node_that_is_hardly_sooner_does_not_take_it() -> None:
    assert not is_sooner(measured("decode"), measured("prefill", busy_bytes=1000))
    assert not is_sooner(measured("decode", per_byte_s=2 * PER_BYTE_S), measured("prefill", busy_bytes=5000))


def test_a_prompt_goes_to_the_prefill_node_that_has_most_of_it() -> None:
    assert not is_sooner(measured("decode"), measured("prefill", busy_bytes=5000), known_bytes=4000)


def test_prompts_that_a_decode_node_computes_count() -> None:
    decode = measured("decode")
    with decode.computing(5000):
        assert not is_sooner(decode, measured("prefill", busy_bytes=5000))
        assert is_sooner(decode, measured("prefill", busy_bytes=50_000))


@pytest.mark.parametrize(("streams", "taken"), [(0, True), (1, False)])
def test_streams_wait_for_a_prompt_no_longer_than_they_may(streams: int, taken: bool) -> None:
    """A long prompt goes to a decode node that has nothing else, or waits for a prefill node."""
    decode = measured("decode", busy_bytes=500 * streams)

    assert is_sooner(decode, measured("prefill", busy_bytes=90_000), new_bytes=11_000) is taken


def test_a_line_that_is_level_by_chance_lets_no_long_prompt_to_streams() -> None:
    decode = node("decode")
    for prompt_bytes in (1000, 3000) * MIN_SAMPLES:
        decode.prefill_time.learn(prompt_bytes, 0.02 if prompt_bytes == 1000 else 0.018, decode.clock())
    decode.begin(500)

    assert not is_sooner(decode, measured("prefill", busy_bytes=90_000), new_bytes=1 << 20)
    assert is_sooner(decode, measured("prefill", busy_bytes=90_000), new_bytes=2000)


def test_a_decode_node_that_has_computed_nothing_is_taken_to_be_as_fast_as_the_prefill_node() -> None:
    assert is_sooner(node("decode"), measured("prefill", busy_bytes=5000))


def test_a_prefill_node_of_which_little_was_seen_gets_the_prompt() -> None:
    prefill = node("prefill")
    prefill.begin(90_000)

    assert not is_sooner(measured("decode"), prefill)
