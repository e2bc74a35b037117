"""What others have on a node, from what it says and what is known of one's own work."""

import random

import pytest

from baton.contracts.node_info import NodeLoad
from baton.proxy.nodes.external_load import GAIN, ExternalLoad
from baton.proxy.nodes.node import SEQUENCE_BYTES, Node, State
from tests.unit.proxy.members import info, node


def load(requests: int, prompt_bytes: int = 0) -> NodeLoad:
    return NodeLoad(requests=requests, prompt_bytes=prompt_bytes)


NONE = load(0)


@pytest.mark.parametrize(
    ("samples", "requests", "prompt_bytes"),
    [
        ([(load(10, 900), load(0, 300))], 10, 600),  # the first one counts whole
        ([(load(10), NONE), (load(2), load(2))], 10 * (1 - GAIN), 0),  # a later one moves it a part of the way
        ([(load(10, 900), load(0, 300)), (None, NONE)], 0, 0),  # a node that does not say has none of others
        ([(load(10, 1000), NONE), *[(NONE, NONE)] * 20], 0, 0),  # a rest would decide between idle nodes for ever
        # A long prompt would keep a node busy for several probes while it is taken to be idle.
        ([(NONE, NONE), (load(1, 1000), NONE)], GAIN, 1000 * GAIN),
        # A node counts bodies and the proxy prompts: the difference is no work.
        ([(load(3, 1000), load(2, 0)), (load(3, 1000), load(3, 700))], 1 - GAIN, 1000 * (1 - GAIN)),
    ],
)
def test_what_is_not_ours_is_the_others(
    samples: list[tuple[NodeLoad | None, NodeLoad]], requests: float, prompt_bytes: float
) -> None:
    others = ExternalLoad()
    for total, own in samples:
        others.learn(total, own)

    assert (others.requests, others.prompt_bytes) == (requests, prompt_bytes)


def test_whatever_is_said_nothing_is_less_than_nothing() -> None:
    """10,000 random samples, most of which cannot be true: never negative, never above the largest seen."""
    rng = random.Random(1)
    more_are_ours = ExternalLoad()
    more_are_ours.learn(load(10, 900), load(0, 1000))
    assert more_are_ours.prompt_bytes == 0
    for _ in range(100):
        others, largest = ExternalLoad(), 0
        for _ in range(100):
            total, own = load(rng.randrange(50), rng.randrange(9_999)), load(rng.randrange(60), rng.randrange(12_000))
            largest = max(largest, total.requests)
            others.learn(rng.choice((total, total, total, None)), own)
            assert 0 <= others.requests <= largest
            assert 0 <= others.prompt_bytes <= 9_999
            if rng.random() < 0.05:
                others.forget()
                assert (others.requests, others.prompt_bytes) == (0, 0)


def test_a_nodes_load_is_ours_and_theirs() -> None:
    """In bytes of prompt, and on a decode node with each sequence's share."""
    for role, each in (("prefill", 0), ("decode", SEQUENCE_BYTES)):
        busy = Node(url="http://n", role=role)  # type: ignore[arg-type]
        busy.begin(100)
        busy.describe(info(busy.role, load=load(4, 1000)))

        assert busy.load == 1000 + 4 * each


def test_what_was_ours_when_the_node_answered_is_not_the_others() -> None:
    probed = Node(url="http://n", role="decode")
    probed.describe(info("decode", load=load(4, 1000)), load(3, 900))

    assert (probed.others.requests, probed.others.prompt_bytes) == (1, 100)


def test_a_node_that_restarted_or_is_lost_has_nothing_from_before() -> None:
    """What others had on the former process is gone; what there is now counts whole, where that is known."""
    other = node("decode", load=load(100, 10_000))
    for incarnation, left in (("2", 0), ("3", 2)):
        other.describe(info("decode", incarnation=incarnation, load=load(left)))
        assert other.others.requests == left
    other.lose(State.DOWN, "a probe failed")

    assert other.load == 0
