"""Blocks that may still be written to wait for a fence."""

from baton.kv_connector.handoff.incoming import Phase
from tests.unit.kv_connector.handoff.machines import WISH, Pair, make_consumer, ready_to_push


def dirty() -> Pair:
    """A push has failed: D waits for the fence of e0. It wanted two blocks."""
    pair = Pair()
    pair.start()
    pair.reserve(wish=WISH._replace(blocks=[[0, 5, 6]]))
    pair.write()
    pair.push(ok=False)
    return pair


def two_reserved(pool_blocks: int = 100) -> Pair:
    """Two epochs through e0, of which one has turned dirty."""
    pair = Pair(consumer=make_consumer(pool_blocks=pool_blocks))
    for name, epoch in (("t", 1), ("u", 2)):
        pair.start(name)
        pair.reserve(name, epoch)
    pair.write("t")
    pair.push(ok=False)
    return pair


def test_a_dirty_epoch_fails_at_once_and_keeps_its_blocks() -> None:
    """E4: the request recomputes elsewhere while the blocks stay in quarantine until the fence (I3), asked for once."""
    pair = dirty()
    [resolved] = pair.resolved()
    assert (resolved.ok, resolved.reason) == (False, "a push failed")
    assert pair.d.closed == []
    assert pair.d.quarantined_blocks() == 2

    for now in (0.1, 0.2, 3.0):
        pair.d.tick(now)
    assert pair.d.fences == ["e0"]
    pair.d.fenced("e0")

    assert pair.d.closed == ["d-t"]
    assert pair.d.quarantined_blocks() == 0
    assert (pair.d.domains.retired, pair.d.domains.fencing) == ({}, set())
    assert not pair.resolved()


def test_healthy_epochs_may_finish_before_the_fence() -> None:
    """The engine is retired at once, and destroyed when its healthy epochs have ended."""
    pair = two_reserved()
    pair.d.engine_added(0, "e1")
    pair.d.tick(1.0)
    assert pair.d.fences == []

    pair.write("u")
    pair.push()
    pair.d.tick(1.1)

    assert [(r.transfer_id, r.ok) for r in pair.resolved()] == [("t", False), ("u", True)]
    assert pair.d.fences == ["e0"]


def test_a_fence_leaves_other_engines_alone() -> None:
    """New reservations go through the fresh engine and are not disturbed."""
    pair = dirty()
    pair.d.engine_added(0, "e1")
    pair.start("u")
    pair.reserve("u", epoch=2)

    pair.d.fenced("e0")

    assert pair.d.closed == ["d-t"]
    assert pair.d.transfers["u"].phase is Phase.RESERVED


def test_quarantine_is_bounded_in_time_and_blocks() -> None:
    """Healthy epochs of a retired engine fail when the dirty ones have waited for long enough, or have too many blocks."""
    pair = two_reserved()

    pair.d.tick(1.9)
    assert pair.d.fences == []
    pair.d.tick(2.0)
    assert pair.d.fences == ["e0"]
    pair.d.fenced("e0")

    assert [(r.transfer_id, r.ok) for r in pair.resolved()] == [("t", False), ("u", False)]
    assert pair.d.closed == ["d-t", "d-u"]

    pair = two_reserved(pool_blocks=20)  # of which 3 are more than a tenth
    pair.d.tick(0.1)
    assert pair.d.fences == ["e0"]


def test_an_unanswered_revoke_ends_in_a_fence() -> None:
    """A push hangs: P cannot answer, and time says nothing about writes."""
    pair = ready_to_push()
    pair.pushes()
    pair.d.cancel("d-t", 0.0)

    pair.after(5.0)
    assert pair.d.fences == []
    pair.after(0.5)

    assert pair.d.fences == ["e0"]
    assert pair.d.closed == []
