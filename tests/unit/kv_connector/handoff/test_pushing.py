"""Blocks are handed out once, when they are ready, and counted when a push returned 0."""

import pytest

from baton.kv_connector.handoff.pushing import Coverage, Piece


def test_ready_blocks_are_handed_out_once() -> None:
    """I1: what the device has not written is not pushed; ranges of one layer never overlap."""
    ready = [0, 0]
    coverage = Coverage(layers=range(2), first_unit=0, wanted=3, ready=ready)
    assert not coverage.pending
    assert coverage.take(10) == ()

    ready[:] = [2, 1]
    assert coverage.take(10) == (Piece(0, 0, 2), Piece(1, 0, 1))
    assert coverage.take(10) == ()

    ready[:] = [3, 3]
    assert coverage.take(10) == (Piece(0, 2, 3), Piece(1, 1, 3))


@pytest.mark.parametrize(("written", "pieces"), [(1, ()), (3, (Piece(0, 0, 1),))])
def test_blocks_that_d_has_are_not_pushed(written: int, pieces: tuple[Piece, ...]) -> None:
    """Only what comes after D's own prefix is handed out, counted from the first wanted block."""
    coverage = Coverage(layers=range(1), first_unit=2, wanted=1, ready=[written])

    assert coverage.pending is bool(pieces)
    assert coverage.take(10) == pieces


def test_a_layer_with_a_window_has_a_range_of_its_own() -> None:
    """What came before was never its, and what is complete is the sum of the ranges."""
    coverage = Coverage(layers=range(3), first_unit=2, wanted=5, ready=[7, 7, 7], spans={1: range(3, 5), 2: range(0)})

    pieces = coverage.take(100)

    assert pieces == (Piece(0, 0, 5), Piece(1, 3, 5))
    assert not coverage.pending
    coverage.acknowledge(pieces[:1])
    assert not coverage.complete
    coverage.acknowledge(pieces[1:])
    assert coverage.complete


def test_a_range_waits_for_its_own_units() -> None:
    """The units before it are ready long before."""
    coverage = Coverage(layers=range(1), first_unit=0, wanted=5, ready=[3], spans={0: range(3, 5)})

    assert not coverage.pending
    assert coverage.take(9) == ()
