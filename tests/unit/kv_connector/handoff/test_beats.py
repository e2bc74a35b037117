"""What is said of a transfer while it waits: beats, and that its prompt has started."""

import pytest

from baton.kv_connector.protocol.messages import Beat, Body, Commit, Fail, OpenEpoch, Reserve, Revoke, Started
from tests.unit.kv_connector.handoff.machines import PEER, WISH, Pair, reserved


@pytest.mark.parametrize("lost", [Reserve, Revoke, Fail, Commit], ids=lambda kind: kind.__name__)
def test_a_beat_repairs_a_loss(lost: type[Body]) -> None:
    """Whatever is lost once comes again within a beat, or does no harm."""
    pair = Pair()
    once = [lost]
    pair.loses = lambda body: type(body) in once and not once.clear()  # type: ignore[func-returns-value]  # by its effect
    pair.start()
    pair.reserve()
    if lost in (Revoke, Fail):
        pair.d.cancel("d-t", 0.0)
        pair.talk()
    pair.write()
    pair.after(0.5)
    pair.push()

    pair.after(0.5)

    assert not once
    assert pair.d.closed == ["d-t"]
    assert not pair.d.transfers
    assert not pair.p.transfers
    assert not pair.d.fences


def test_the_requests_of_one_step_are_announced_in_one_beat() -> None:
    """A beat lists everything that is open: one per request would make a burst of arrivals quadratic."""
    pair = Pair()
    pair.watch()
    pair.d.outbox.clear()
    for name in ("u", "v", "w"):
        pair.d.watch(name, f"d-{name}", PEER, pair.now)

    pair.d.announce()

    (beat,) = [message.body for _, message in pair.d.outbox]
    assert isinstance(beat, Beat)
    assert [transfer_id for transfer_id, _ in beat.open] == ["t", "u", "v", "w"]
    pair.d.outbox.clear()
    pair.d.announce()
    assert pair.d.outbox == []


def test_a_beat_lists_epochs_as_p_may_know_them() -> None:
    """One that was not sent yet is 0."""
    pair = reserved()
    pair.watch("u")
    pair.d.prepare("d-u", 2, WISH, 0.0)

    pair.d.tick(1.0)

    assert [message.body for _, message in pair.d.outbox] == [Beat(open=[OpenEpoch("t", 1), OpenEpoch("u", 0)])]


def test_started_is_told_to_who_watches() -> None:
    """Whether the watch or the start comes first. D notes it once, and nothing of what it does not know."""
    for first, second in ((Pair.watch, Pair.start), (Pair.start, Pair.watch)):
        pair = Pair()
        first(pair)
        second(pair)
        assert pair.heard_of(Started) == [Started(transfer_id="t", tokens=40)]
        pair.after(2.0)
        pair.to_d(Started(transfer_id="unknown", tokens=1))

        assert pair.d.started == ["t"]
