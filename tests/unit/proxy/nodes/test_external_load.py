"""What others have on a node, from what it says and what is known of one's own work."""

import random

from baton.contracts.node_info import NodeLoad
from baton.proxy.nodes.external_load import GAIN, ExternalLoad
from baton.proxy.nodes.node import SEQUENCE_BYTES, Node, State
from tests.unit.proxy.members import info, node


def load(requests: int, prompt_bytes: int = 0) -> NodeLoad:
    return NodeLoad(requests=requests, prompt_bytes=prompt_bytes)


def test_what_is_not_ours_is_the_others() -> None:
    """The first sample counts whole, a later one moves it a part of the way; a node that does not say has none of others."""
    others = ExternalLoad()
    others.learn(load(10, 900), load(0, 300))
    assert (others.requests, others.prompt_bytes) == (10, 600)
    others.learn(load(2), load(2))
    assert others.requests == 10 * (1 - GAIN)
    others.learn(None, load(0))

    assert (others.requests, others.prompt_bytes) == (0, 0)


def test_what_has_faded_is_nothing() -> None:
    """Idle nodes are all alike again: a rest would decide between them for ever."""
    others = ExternalLoad()
    others.learn(load(10, 1000), load(0))
    for _ in range(20):
        others.learn(load(0), load(0))

    assert (others.requests, others.prompt_bytes) == (0, 0)


def test_one_request_of_others_counts_at_the_first_probe_that_tells_of_it() -> None:
    """On a node that was idle, too: a long prompt would keep it busy for several probes while it is taken to be idle."""
    others = ExternalLoad()
    others.learn(load(0), load(0))
    others.learn(load(1, 1000), load(0))

    assert (others.requests, others.prompt_bytes) == (GAIN, 1000 * GAIN)


def test_bytes_without_requests_count_for_no_request() -> None:
    """A node counts bodies and the proxy prompts: the difference is no work."""
    others = ExternalLoad()
    others.learn(load(3, 1000), load(2, 0))
    before = others.prompt_bytes
    others.learn(load(3, 1000), load(3, 700))

    assert (before, others.prompt_bytes) == (1000, 1000 * (1 - GAIN))


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


def test_a_node_that_restarted_or_is_lost_has_nothing_from_before() -> None:
    """What others had on the former process is gone; what there is now counts whole, where that is known."""
    other = node("decode", load=load(100, 10_000))
    for incarnation, left in (("2", 0), ("3", 2)):
        other.describe(info("decode", incarnation=incarnation, load=load(left)))
        assert other.others.requests == left
    other.lose(State.DOWN, "a probe failed")

    assert other.load == 0
