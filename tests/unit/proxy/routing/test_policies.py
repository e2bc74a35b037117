"""Properties of each policy, over random fleets."""

import random
from collections import Counter
from collections.abc import Sequence
from typing import get_args

import pytest

from baton.contracts.configuration.schema import RoutingPolicy
from baton.proxy.nodes.node import Node
from baton.proxy.routing.policies import (
    Candidates,
    ConsistentHash,
    LeastLoad,
    Policy,
    PowerOfTwo,
    PrefixAffinity,
    Remembering,
    RoundRobin,
    Work,
    policy_of,
)
from baton.proxy.routing.prefix_index import PrefixIndex
from baton.proxy.routing.prefixes import CHUNK_BYTES, STEP_BYTES, Steps, prefixes


def idle(slot: int, load: float = 0.0) -> Node:
    return Node(url=f"http://node-{slot}", role="prefill", slot=slot, load=load)


def fleet(loads: Sequence[float]) -> Candidates:
    return Candidates([idle(slot, load) for slot, load in enumerate(loads)])


def works(rng: random.Random, count: int) -> list[Work]:
    return [
        Work(
            rng.randrange(200_000),
            turn,
            tuple(rng.randrange(20) for _ in range(rng.randrange(5))),
            rng.choice(["", "a", "b"]),
            rng.random(),
            turn * 0.1,
        )
        for turn in range(count)
    ]


def give(policy: Policy, work: Work, node: Node) -> None:
    policy.given(work, node, work.prompt_bytes - policy.seen_bytes(work, node))


@pytest.mark.parametrize("remembers", [False, True])
@pytest.mark.parametrize("name", get_args(RoutingPolicy))
def test_the_choice_is_a_candidate_and_depends_on_nothing_else(name: str, *, remembers: bool) -> None:
    rng = random.Random(name)
    policy = policy_of(name, PrefixIndex(), remembers=remembers)
    nodes = [idle(slot, rng.choice([0.0, 1e3, 1e6])) for slot in range(40)]
    for work in works(rng, 100):
        candidates = Candidates(rng.sample(nodes, rng.randrange(1, 41)))

        chosen = policy.choose(work, candidates)

        assert chosen in candidates.nodes
        assert policy.choose(work, candidates) is chosen
        give(policy, work, chosen)
        if rng.random() < 0.05:
            policy.forget(chosen.slot)


def test_what_is_new_to_a_node_is_known_with_any_policy_that_remembers() -> None:
    """And the memory is that of both roles, each node with a slot of its own."""
    index, work = PrefixIndex(), Work(4 * CHUNK_BYTES, 0, (1, 2, 3))
    first, second = idle(0), idle(1)
    affinity, policy = PrefixAffinity(index), Remembering(LeastLoad(), index)
    give(policy, work._replace(prefixes=(1, 2)), first)
    give(affinity, work, second)

    assert [policy.seen_bytes(work, each) for each in (first, second)] == [2 * CHUNK_BYTES, 3 * CHUNK_BYTES]
    assert affinity.seen_bytes(work, first) == 2 * CHUNK_BYTES
    policy.forget(0)
    assert policy.seen_bytes(work, first) == 0
    assert LeastLoad().seen_bytes(work, second) == 0
    assert policy_of("least_load", index, remembers=True).reads_prompts
    assert not policy_of("least_load", index).reads_prompts


def work_of(text: bytes) -> Work:
    numbers = prefixes(text, "m")
    return Work(len(text), 0, numbers, steps=Steps(text, numbers, "m"))


@pytest.mark.parametrize("turn_bytes", [900, 3000])
def test_of_the_turn_before_all_but_a_step_is_known(turn_bytes: int) -> None:
    """A conversation's next turn goes on within a chunk."""
    text, node = random.Random(3).randbytes(5 * turn_bytes), idle(0)
    turns = [text[: turns * turn_bytes] for turns in range(1, 6)]
    for policy in PrefixAffinity(), Remembering(LeastLoad(), PrefixIndex()):
        works = [work_of(turn) for turn in turns]
        for known, work in zip([0, *map(len, turns)], works, strict=False):
            assert known - STEP_BYTES < policy.seen_bytes(work, node) <= known
            give(policy, work, node)


def test_least_load_chooses_a_minimum_and_rotates_ties() -> None:
    rng = random.Random(3)
    for turn in range(200):
        candidates = fleet([rng.randrange(5) for _ in range(rng.randrange(1, 30))])
        chosen = LeastLoad().choose(Work(1, turn), candidates)
        assert chosen.load == min(node.load for node in candidates.nodes)
    idle = fleet([0, 0, 0])
    assert [LeastLoad().choose(Work(1, turn), idle).slot for turn in range(6)] == [0, 1, 2, 0, 1, 2]


def test_least_load_among_thousands_looks_at_some_and_at_all_in_turn() -> None:
    """An idle node is found within as many turns as there are windows."""
    busy = fleet([*[9] * 600, 0, *[9] * 399])

    chosen = [LeastLoad().choose(Work(1, turn), busy).load for turn in range(8)]

    assert min(chosen) < max(chosen)


@pytest.mark.parametrize("nodes", [257, 1000])
def test_a_window_that_reaches_the_end_goes_on_at_the_beginning(nodes: int) -> None:
    """As many nodes are looked at in each turn, all of them different; they were as few as one of 257."""
    candidates = fleet([0] * nodes)
    for turn in range(nodes):
        assert len({node.slot for node in candidates.window(turn, 256)}) == 256


def test_power_of_two_never_chooses_the_worst_and_draws_all_pairs() -> None:
    candidates = fleet([1, 2, 3, 4])
    chosen = Counter(PowerOfTwo().choose(Work(1, 0, draw=i / 1200), candidates).slot for i in range(1200))

    assert chosen == {0: 600, 1: 400, 2: 200}
    assert PowerOfTwo().choose(Work(1, 0, draw=0.99), fleet([7])).load == 7


def test_round_robin_takes_turns() -> None:
    candidates = fleet([9, 0, 5])
    assert [RoundRobin().choose(Work(1, turn), candidates).slot for turn in range(4)] == [0, 1, 2, 0]


def test_a_key_stays_where_it_is_when_another_node_leaves() -> None:
    """Only the keys of a node that left move, and each node has a fair part of the keys."""
    nodes = [idle(slot) for slot in range(10)]
    keys = [Work(1, 0, key=f"user-{i}") for i in range(2000)]
    policy = ConsistentHash()
    everybody, rest = Candidates(nodes), Candidates(nodes[:4] + nodes[5:])
    before = [policy.choose(work, everybody) for work in keys]

    after = [policy.choose(work, rest) for work in keys]

    assert all(a is b for a, b in zip(before, after, strict=True) if a is not nodes[4])
    assert all(100 <= count <= 320 for count in Counter(node.slot for node in before).values())
    assert policy.choose(Work(1, 0), fleet([5, 1])).slot == 1


def test_affinity_follows_a_conversation_until_its_node_is_busy() -> None:
    """The node that has seen the prompt may have eight times as much to do as it saves, and not more."""
    policy, candidates = PrefixAffinity(), fleet([0, 0, 0, 0])
    turn = Work(10 * CHUNK_BYTES, 0, range(10))
    other = Work(10 * CHUNK_BYTES, 0, range(100, 110))
    for node in candidates.nodes:
        give(policy, other, node)
    give(policy, turn, candidates.nodes[2])
    policy.forget(1)

    assert policy.choose(turn, candidates).slot == 2
    candidates.nodes[2].load = 80 * CHUNK_BYTES - 1
    assert policy.choose(turn, candidates).slot == 2
    candidates.nodes[2].load = 80 * CHUNK_BYTES + 1
    assert policy.choose(turn, candidates).slot != 2


def test_affinity_takes_no_notice_of_what_everybody_has_seen() -> None:
    policy, candidates = PrefixAffinity(), fleet([50, 40, 10, 30])
    for node in candidates.nodes:
        give(policy, Work(4 * CHUNK_BYTES, 0, range(4)), node)

    assert policy.choose(Work(4 * CHUNK_BYTES, 0, range(4)), candidates).slot == 2


@pytest.mark.parametrize(
    ("given_bytes", "more_bytes", "slot"), [(1 << 20, 0, 0), (2 << 20, 0, 1), (1 << 20, 4 << 20, 1)]
)
def test_affinity_gives_no_node_much_more_than_its_share(given_bytes: int, more_bytes: int, slot: int) -> None:
    """While all are idle the one that has seen the prompt would get everything; so it does up to a slack."""
    policy, candidates = PrefixAffinity(), fleet([0, 0])
    give(policy, Work(given_bytes, 0, range(10)), candidates.nodes[0])

    assert policy.choose(Work(10 * CHUNK_BYTES + more_bytes, 1, range(10)), candidates).slot == slot


def test_a_prompt_that_is_longer_than_any_share_goes_to_the_node_with_the_least_given() -> None:
    policy, candidates = PrefixAffinity(), fleet([0, 0, 0])
    for node, given_bytes in zip(candidates.nodes, (2 << 20, 1 << 20, 3 << 20), strict=True):
        give(policy, Work(given_bytes, 0), node)

    assert policy.choose(Work(8 << 20, 0), candidates).slot == 1


def test_what_a_node_was_given_does_not_count_for_the_next_one_with_its_slot() -> None:
    policy, candidates = PrefixAffinity(), fleet([0, 0])
    give(policy, Work(2 << 20, 0, range(10)), candidates.nodes[0])
    policy.forget(0)
    give(policy, Work(10 * CHUNK_BYTES, 0, range(10)), candidates.nodes[0])

    assert policy.choose(Work(10 * CHUNK_BYTES, 1, range(10)), candidates).slot == 0


def test_affinity_finds_the_node_among_a_thousand() -> None:
    """Nodes that have seen the prompt are looked at wherever they are; of the others, a few each time."""
    policy, candidates = PrefixAffinity(), fleet([0] * 1000)
    for turn in range(1000):
        give(policy, Work(9 * CHUNK_BYTES, turn, (turn * 1000,)), candidates.nodes[turn])
    work = Work(9 * CHUNK_BYTES, 0, range(7, 16))
    give(policy, work, candidates.nodes[777])
    policy.forget(776)

    assert policy.choose(work, candidates).slot == 777
