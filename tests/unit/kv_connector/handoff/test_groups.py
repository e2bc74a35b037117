"""Layers of several KV cache groups: each has block tables of its own, and ranges of its own to push."""

from collections.abc import Callable
from typing import Any

import pytest

from baton.kv_connector.handoff.incoming import BlockReservation, ConsumerTransfer
from baton.kv_connector.handoff.outgoing import Prompt
from baton.kv_connector.handoff.pushing import GroupPair, TransferLayout
from tests.unit.kv_connector.handoff.machines import Pair

# 70 tokens in blocks of 16: five blocks. Layer 0 reads everything, layer 1 the last 40 tokens: from block 1 on.
PROMPT = Prompt(70, 5, b"hash")
GROUPS = {0: GroupPair(0, 1), 1: GroupPair(1, 0, window=40)}
WISH = BlockReservation(70, 0, [[0, 12, 13, 14, 15], [1, 2, 3, 4, 5]], b"hash")


@pytest.fixture
def pair() -> Pair:
    """P and D, whose groups have other numbers."""
    made = Pair()
    made.p._terms = lambda _: TransferLayout(range(2), shares=2, regions=range(2), groups=GROUPS)
    return made


def start(pair: Pair, **changes: Any) -> None:
    """P computes all of the prompt; of the second group's blocks the first has been freed."""
    pair.p.start("t", "p-t", PROMPT._replace(**changes), pair.now)
    pair.p.add_source_blocks("p-t", [21, 22, 23], [0, 32, 33])
    pair.p.add_source_blocks("p-t", [24, 25], [34, 35])
    pair.talk()
    pair.write(blocks=5)


def test_each_layer_is_pushed_from_and_to_the_blocks_of_its_group(pair: Pair) -> None:
    """The layer with a window from the first block on that is still read."""
    start(pair)
    pair.reserve(wish=WISH)

    [push] = pair.pushes()

    assert [tuple(piece) for piece in push.pieces] == [(0, 0, 5), (1, 1, 5)]
    lie = [push.transfer.units(16, GROUPS[layer]).lie(start, stop)[:2] for layer, start, stop in push.pieces]
    assert lie == [([21, 22, 23, 24, 25], [1, 2, 3, 4, 5]), ([32, 33, 34, 35], [12, 13, 14, 15])]
    pair.p.push_done(push, True, pair.now)
    pair.talk()
    assert [resolved.ok for resolved in pair.resolved()] == [True]


def test_a_commit_waits_for_every_group(pair: Pair) -> None:
    """I4: one layer's blocks are not the other's."""
    start(pair)
    pair.reserve(wish=WISH)

    pushes = pair.pushes(max_blocks=5)

    assert [[piece.layer for piece in push.pieces] for push in pushes] == [[0], [1]]
    pair.p.push_done(pushes[0], True, pair.now)
    pair.talk()
    assert not pair.resolved()
    pair.p.push_done(pushes[1], True, pair.now)
    pair.talk()
    assert [resolved.ok for resolved in pair.resolved()] == [True]


@pytest.mark.parametrize(
    ("tokens", "blocks", "pieces", "pushed"),
    [
        (65, [[0, 12, 13, 14, 0], [1, 2, 3, 4, 0]], [(0, 0, 4), (1, 1, 4)], [32, 33, 34]),  # the last token is D's own
        (70, [[0, 0, 0, 0, 0], [1, 2, 3, 4, 5]], [(0, 0, 5)], []),  # D has all of the window
    ],
)
def test_what_d_does_not_want_does_not_travel(
    pair: Pair, tokens: int, blocks: list[list[int]], pieces: list[tuple[int, ...]], pushed: list[int]
) -> None:
    """And is not waited for."""
    start(pair, tokens=tokens)
    pair.reserve(wish=WISH._replace(tokens=tokens, blocks=blocks))

    [push] = pair.pushes()
    pair.p.push_done(push, True, pair.now)
    pair.talk()

    assert [tuple(piece) for piece in push.pieces] == pieces
    assert push.transfer.pushed_blocks(16, GROUPS[1]) == pushed
    assert [resolved.ok for resolved in pair.resolved()] == [True]


LONG = {0: GroupPair(0, 1), 1: GroupPair(1, 0, window=40, places=2)}
LONG_WISH = WISH._replace(blocks=[[0, 11, 0, 12, 13], [1, 2, 3, 4, 5]])


def start_long(pair: Pair) -> None:
    """Blocks of the second group have 32 tokens: the last one is cut off by the prompt's end."""
    pair.p._terms = lambda _: TransferLayout(range(2), shares=2, regions=range(2), groups=LONG)
    pair.p.start("t", "p-t", PROMPT, pair.now)
    pair.p.add_source_blocks("p-t", [21, 22, 23, 24, 25], [0, 31, 0, 32, 33])
    pair.talk()


def test_a_long_block_is_pushed_when_all_of_its_places_are_written(pair: Pair) -> None:
    """I1: three scheduler blocks have one long block in them, and the last two are not full before the prompt's end."""
    start_long(pair)
    pair.write(blocks=3)
    pair.reserve(wish=LONG_WISH)

    found = []
    for written in (3, 4, 5):
        pair.write(blocks=written)
        for push in pair.pushes():
            for layer, first, stop in push.pieces:
                if layer == 1:
                    found.append((written, *push.transfer.units(16, LONG[1]).lie(first, stop)))
            pair.p.push_done(push, True, pair.now)
    pair.talk()

    assert found == [(3, [31], [11], [0]), (4, [32], [12], [0]), (5, [33], [13], [0])]
    assert [resolved.ok for resolved in pair.resolved()] == [True]


ALL = [1, 2, 3, 4, 5]
UNFIT: dict[str, tuple[Callable[[Pair], None], list[list[int]]]] = {
    "a block that P has let go": (start, [[11, 12, 13, 14, 15], ALL]),
    "a hole": (start, [[0, 12, 0, 14, 15], ALL]),
    "another length": (start, [[12, 13, 14, 15], ALL]),
    "a group is missing": (start, [[0, 12, 13, 14, 15]]),
    "a hole between long blocks": (start_long, [[0, 11, 0, 0, 13], ALL]),
    "a long block at another place": (start_long, [[0, 11, 12, 0, 13], ALL]),
    "a long block at the first of its places": (start_long, [[11, 0, 12, 0, 13], ALL]),
    "another length of long blocks": (start_long, [[0, 11, 0, 12, 0, 13], ALL]),
}


@pytest.mark.parametrize(("start", "blocks"), UNFIT.values(), ids=UNFIT)
def test_a_reservation_that_no_window_leaves_fails_cleanly(
    pair: Pair, start: Callable[[Pair], None], blocks: list[list[int]]
) -> None:
    """I2: P does not take D's word for what is still held, nor for what lies there."""
    start(pair)
    pair.write(blocks=5)
    pair.reserve(wish=WISH._replace(blocks=blocks))

    assert not pair.pushes()
    assert [(resolved.ok, resolved.reason) for resolved in pair.resolved()] == [
        (False, "the reservation does not fit the prompt")
    ]


def test_a_place_without_a_block_is_none_that_is_written_to() -> None:
    wish = BlockReservation(40, 0, [[0, 0, 12], [1, 2, 3]], b"hash")

    assert ConsumerTransfer("t", "r", "tcp://p:1", 0.0, wish=wish).num_blocks == 4
    assert ConsumerTransfer("t", "r", "tcp://p:1", 0.0).num_blocks == 0
