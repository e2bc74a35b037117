"""Transfers whose digests are compared."""

import pytest

from baton.kv_connector.protocol.messages import Beat, Commit, Fail, Introduce, Message, OpenEpoch, Revoke
from tests.unit.kv_connector.handoff.machines import (
    PEER,
    D,
    P,
    Pair,
    committed,
    outcome,
    ready_to_push,
    reserved,
    verifying,
)


def test_a_mismatch_fails_the_transfer_cleanly_and_p_hears_of_it() -> None:
    """D recomputes; P does not write any more, so there is nothing to fence."""
    pair = verifying()
    [transfer] = pair.d.to_verify

    assert pair.d.verified(transfer, "layer.3", mismatch=True)
    pair.after(3.0)

    [resolved] = pair.resolved()
    assert (resolved.ok, resolved.reserved, resolved.reason) == (False, True, "layer.3")
    assert pair.d.closed == ["d-t"]
    assert not pair.d.fences
    assert [complaint.mismatch for complaint in pair.p.complaints] == ["layer.3"]


def test_cancel_while_verifying_gives_the_blocks_back_at_once() -> None:
    """No request waits and P does not write; the comparison that comes later finds nothing to do."""
    pair = verifying()
    [transfer] = pair.d.to_verify

    pair.d.cancel("d-t", 0.0)
    assert pair.d.verified(transfer, "layer.3", mismatch=True) is False
    pair.talk()

    assert pair.p.complaints == []
    assert [resolved.reason for resolved in pair.resolved()] == ["cancelled"]
    assert pair.d.closed == ["d-t"]
    assert not pair.d.transfers


def test_a_cancelled_request_is_not_verified() -> None:
    """Cancelled before the commit came: its KV is not used whatever it is."""
    pair = ready_to_push()
    pair.p._verify = lambda _: True
    pair.push()
    pair.loses = lambda body: isinstance(body, Revoke)
    pair.d.cancel("d-t", 0.0)
    pair.talk()

    pair.p.digested(pair.p.to_digest[0], b"digests!", 0.0)
    pair.talk()

    assert not pair.d.to_verify
    assert pair.d.closed == ["d-t"]


@pytest.mark.parametrize("peer", ["unchanged", "silent", "restarted", "fenced"])
def test_a_commit_with_digests_is_used_once_they_agree(peer: str) -> None:
    """The request waits, with its blocks held. All of it has arrived: whatever happens to P, nothing is left that could land late."""
    pair = verifying()
    if peer == "fenced":
        pair.d.fenced("e0")
    elif peer == "restarted":
        pair.d.receive(PEER, Message(P + 1, D, 1, Introduce()), 1.0)
    elif peer == "silent":
        pair.loses = lambda _: True
        pair.after(8.0)
    assert (pair.resolved(), pair.d.closed) == ([], [])
    [transfer] = pair.d.to_verify
    assert transfer.commit is not None
    assert transfer.commit.digests == b"digests!"

    pair.d.verified(transfer)

    assert [(resolved.ok, resolved.commit) for resolved in pair.resolved()] == [(True, transfer.commit)]
    assert pair.d.closed == ["d-t"]
    assert not pair.d.fences


def test_a_repeated_commit_is_verified_once() -> None:
    """P has nothing to answer any more about an epoch that is verified; of a beat that still lists it the answer may come late."""
    pair = verifying()
    pair.d.tick(1.0)
    [(_, message)] = pair.d.outbox
    assert message.body == Beat(open=[])

    pair.to_p(Beat(open=[OpenEpoch("t", 1)]))
    pair.talk()

    assert len(pair.heard_of(Commit)) == 2
    assert len(pair.d.to_verify) == 1
    assert "t" in pair.d.transfers


def complete() -> Pair:
    """Everything has been pushed of a transfer that is to be verified."""
    pair = reserved()
    pair.p._verify = lambda transfer_id: transfer_id == "t"
    pair.write()
    pair.push()
    return pair


def test_a_commit_waits_for_its_digests() -> None:
    """Asked for once, when everything has been pushed; the blocks are kept, and what was computed travels with the commit."""
    pair = complete()
    pair.p.hold("p-t", 0.0)
    pair.after(0.5)
    [transfer] = pair.p.to_digest
    assert transfer.pushed_blocks(16) == [1, 2, 3]
    assert not pair.heard_of(Commit)
    assert not pair.p.released

    pair.p.digested(transfer, b"digests!", pair.now)
    pair.talk()

    assert committed(pair).digests == b"digests!"
    assert "digested" in committed(pair).timings_s
    assert len(pair.heard_of(Commit)) == len(pair.p.to_digest) == 1
    assert pair.p.released == ["p-t"]


@pytest.mark.parametrize("reason", ["preempted", "the digests could not be computed"])
def test_what_was_to_be_verified_and_cannot_be_is_not_committed(reason: str) -> None:
    """I2: after a void the digest may be that of another request's KV: D is told at once, and the late one changes nothing."""
    pair = complete()
    [transfer] = pair.p.to_digest

    if reason == "preempted":
        pair.p.void("p-t", reason, 0.0)
        pair.talk()
    pair.p.digested(transfer, b"digests!" if reason == "preempted" else b"", 0.0)
    pair.talk()

    assert outcome(pair) == Fail(transfer_id="t", epoch=1, dirty=False, reason=reason)
    assert not pair.heard_of(Commit)
