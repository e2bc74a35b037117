"""The index of what each node has seen: against a plain one, and bounded."""

import random
from collections import defaultdict

from baton.proxy.routing.prefix_index import PrefixIndex, each


def chain(rng: random.Random) -> list[int]:
    """A prompt's numbers, from a small tree so that prompts share beginnings."""
    path, number = [], 0
    for _ in range(rng.randrange(6)):
        number = number * 3 + rng.randrange(3) + 1
        path.append(number)
    return path


def test_it_answers_as_plain_sets_do() -> None:
    """1,000 random steps of adding, forgetting and asking."""
    rng = random.Random(2)
    index = PrefixIndex()
    plain: defaultdict[int, set[int]] = defaultdict(set)
    for _ in range(1000):
        prompt, slot = chain(rng), rng.randrange(7)
        if rng.random() < 0.05:
            index.forget(slot)
            plain[slot].clear()
        elif rng.random() < 0.5:
            index.add(prompt, slot)
            plain[slot].update(prompt)
        among = rng.randrange(1 << 7)
        wanted = {}
        for other in range(7):
            depth = next((i for i, number in enumerate(prompt) if number not in plain[other]), len(prompt))
            if among >> other & 1 and depth:
                wanted[other] = depth

        matches = index.matches(prompt, among)

        assert dict(each(matches)) == wanted
        assert [depth for _, depth in matches] == sorted({*wanted.values()}, reverse=True)
        assert all(index.count_seen(prompt, slot) == depth for slot, depth in wanted.items())


def test_what_was_seen_counts_from_the_beginning() -> None:
    index = PrefixIndex()
    index.add((1, 3), 0)

    assert index.count_seen((1, 2, 3), 0) == 1
    assert [*each(index.matches((1, 2, 3), 1))] == [(0, 1)]


def test_what_was_used_last_is_kept() -> None:
    """Half of the bound is always kept: a prompt that came within so many entries is still known."""
    index = PrefixIndex(max_entries=100)
    for number in range(1000):
        index.add([number], slot=1)
        oldest = max(0, number - 49)

        assert index.matches([oldest], among=0b10)
        assert len(index) <= 100
