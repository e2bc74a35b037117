"""Where the units of a transfer lie on either side."""

from unittest.mock import Mock

import pytest

from baton.kv_connector.handoff.outgoing import ProducerTransfer, UnitMapping
from baton.kv_connector.handoff.pushing import GroupPair


@pytest.mark.parametrize(
    ("ours", "theirs", "first", "lie"),
    [
        (1, 1, 2, ([12, 13, 14], [20, 21, 22], [0, 0, 0])),
        (2, 1, 3, ([11, 12, 12], [20, 21, 22], [1, 0, 1])),
        (1, 2, 2, ([12, 13, 14], [20, 20, 21], [0, 1, 0])),
    ],
    ids=["blocks of the same size", "ours are larger", "theirs are larger"],
)
def test_a_unit_is_a_part_of_the_larger_block(
    ours: int, theirs: int, first: int, lie: tuple[list[int], list[int], list[int]]
) -> None:
    """The first wanted unit begins a block of the decode rank's, and may lie within one of ours."""
    mapping = UnitMapping([10, 11, 12, 13, 14, 15], [20, 21, 22, 23], first, ours, theirs)

    assert mapping.lie(0, 3) == lie
    assert mapping.lie(1, 3) == tuple(each[1:] for each in lie)


def test_only_of_a_group_whose_blocks_stand_for_several_places_some_have_no_block() -> None:
    wish = Mock(from_token=0, blocks=[[20, 21]])
    transfer = ProducerTransfer("t", 0.0, layers=1, reservation=wish, source_blocks=[[10, 11]])

    assert [transfer.units(8, GroupPair(places=places)).has_gaps for places in (1, 2)] == [False, True]
