"""What others have on a node, from what it says and what is known of one's own work."""

import random

from baton.contracts.node_info import NodeLoad
from baton.proxy.nodes.external_load import GAIN, ExternalLoad
from baton.proxy.nodes.node import SEQUENCE_BYTES, Node, State
from tests.unit.proxy.members import info, node


def load(requests: int, prompt_bytes: int = 0) -> NodeLoad:
    """So many requests with so many bytes."""
    return NodeLoad(requests=requests, prompt_bytes=prompt_bytes)


def test_what_is_not_ours_is_the_others() -> None:
    """The first sample counts whole."""
    others = ExternalLoad()
    others.learn(load(5, 900), load(2, 300))

    assert (others.requests, others.prompt_bytes) == (3, 600)


def test_later_samples_move_it_a_part_of_the_way() -> None:
    """A sample is only what there was at one instant."""
    others = ExternalLoad()
    others.learn(load(10), load(0))
    others.learn(load(0), load(0))

    assert others.requests == 10 * (1 - GAIN)


def test_what_has_faded_is_nothing() -> None:
    """Idle nodes are all alike again: a rest would decide between them for ever."""
    others = ExternalLoad()
    others.learn(load(10, 1000), load(0))
    for _ in range(20):
        others.learn(load(0), load(0))

    assert (others.requests, others.prompt_bytes) == (0, 0)


def test_bytes_without_requests_are_nobodys() -> None:
    """A node counts bodies and the proxy prompts: the difference is no work."""
    others = ExternalLoad()
    others.learn(load(3, 1000), load(3, 700))

    assert (others.requests, others.prompt_bytes) == (0, 0)


def test_a_node_that_says_nothing_has_nothing_from_others() -> None:
    """As before there was such a thing."""
    others = ExternalLoad()
    others.learn(load(5), load(0))
    others.learn(None, load(0))

    assert others.requests == 0


def test_whatever_is_said_nothing_is_less_than_nothing() -> None:
    """10,000 random samples, most of which cannot be true: never negative, never above the largest seen."""
    rng = random.Random(1)
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


def test_a_restarted_node_starts_at_nothing() -> None:
    """Whatever was there is gone with the former process; what there is now counts whole."""
    for left in (0, 2):
        restarted = node("decode", load=load(100, 10_000))
        restarted.describe(info("decode", incarnation="2", load=load(left)))

        assert restarted.others.requests == left


def test_a_node_that_is_lost_has_nothing_from_others() -> None:
    """Nobody knows; when it is back it will say."""
    lost = node("decode", load=load(100))
    lost.lose(State.DOWN, "a probe failed")

    assert lost.load == 0


def test_the_load_is_never_negative_whatever_begins_and_ends_between_probes() -> None:
    """Random work of two proxies on one node, which says at random times how much it has."""
    rng = random.Random(2)
    mine, theirs = node("decode"), node("decode")
    open_ones: list[tuple[Node, object]] = []
    for _ in range(5_000):
        if rng.random() < 0.5:
            proxy = rng.choice((mine, theirs))
            open_ones.append((proxy, proxy.begin(rng.randrange(1000))))
        elif open_ones:
            _, end = open_ones.pop(rng.randrange(len(open_ones)))
            end()  # type: ignore[operator]
        if rng.random() < 0.1:
            total = load(mine.requests + theirs.requests, mine.prompt_bytes + theirs.prompt_bytes)
            for proxy in (mine, theirs):
                proxy.describe(info("decode", load=total))
        for proxy in (mine, theirs):
            assert proxy.load >= proxy.requests * SEQUENCE_BYTES + proxy.prompt_bytes
