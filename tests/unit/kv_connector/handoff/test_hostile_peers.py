"""Peers that hold the secret and abuse it: what is refused is counted, and others do not feel it."""

from collections.abc import Callable

import pytest

from baton.kv_connector.handoff.outgoing import MismatchReport
from baton.kv_connector.protocol.messages import (
    Beat,
    Body,
    Commit,
    Fail,
    Introduce,
    Message,
    OpenEpoch,
    Revoke,
    Started,
)
from baton.kv_connector.telemetry.refusals import Refused
from tests.unit.kv_connector.handoff.hostile_rank import POOL, E, Scene, greeting
from tests.unit.kv_connector.handoff.machines import HASH, PEER, D, P, hello, reservation

ON_ANOTHERS_TRANSFER: list[Body] = [
    reservation(),
    Revoke(transfer_id="t", epoch=0),
    Revoke(transfer_id="t", epoch=1),
    Beat(open=[OpenEpoch("t", 0)]),
]


@pytest.mark.parametrize("body", ON_ANOTHERS_TRANSFER, ids=lambda body: type(body).__name__)
def test_a_transfer_belongs_to_the_first_rank_that_asks_for_it(scene: Scene, body: Body) -> None:
    """Another one that has learnt its id can neither take nor end it, and what it is told is clean."""
    answers = scene.says(body)

    told = [answer.dirty for answer in answers if isinstance(answer, Fail)]
    assert told == ([] if isinstance(body, Beat) else [False])
    assert scene.counts() == {Refused.NOT_THEIRS: 1}
    assert scene.ends_well()


def test_what_a_rank_that_is_gone_had_may_be_anothers(scene: Scene) -> None:
    """Its transfers end with its session: one that restarted is no obstacle for longer than `peer_timeout_s`."""
    scene.pair.reserve()
    claims = scene.pair.p._quotas
    assert (claims.owners, claims.transfers[D]) == ({"e0": D}, 1)
    scene.pair.p.sessions[D].last_heard = -100.0
    scene.pair.p.tick(scene.pair.now)
    assert (claims.owners, claims.transfers) == ({}, {})

    answers = scene.says(reservation("u", engine="e0"))

    assert not any(isinstance(answer, Fail) for answer in answers)
    assert scene.counts() == {}
    assert claims.owners == {"e0": E}


@pytest.mark.parametrize("blocks", [[[1, POOL, 2]], [[1 << 30]], [[], [POOL]]])
def test_blocks_that_the_pool_does_not_have_are_refused_at_once(scene: Scene, blocks: list[list[int]]) -> None:
    """P writes nowhere but into blocks that the rank has announced; nothing has been written, so the failure is clean."""
    answers = scene.says(reservation("u", blocks=blocks))

    assert [(answer.transfer_id, answer.dirty) for answer in answers if isinstance(answer, Fail)] == [("u", False)]
    assert scene.counts() == {Refused.BLOCKS: 1}
    assert "u" not in scene.pair.p.transfers


def test_no_rank_gets_writes_through_anothers_engine(scene: Scene) -> None:
    """An engine belongs to the first rank that names it: else P would write where the hostile one says, in its memory."""
    scene.pair.reserve()

    answers = scene.says(reservation("u", engine="e0"))

    assert any(isinstance(answer, Fail) for answer in answers)
    assert scene.counts() == {Refused.ENGINE: 1}
    assert scene.ends_well()


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        (Message(99, P, 1, Beat(open=[])), Refused.STRANGER),
        (Message(E, P + 1, 1 << 40, Beat(open=[])), Refused.FOREIGN_RECEIVER),
        (Message(E, P, 1, Beat(open=[])), Refused.OVERTAKEN),
        (Message(E, P, 1, greeting()), Refused.OVERTAKEN),
        (Message(E, P, 1 << 40, Started(transfer_id="t", tokens=1)), Refused.UNEXPECTED),
        (Message(E, P, 1 << 40, Introduce()), Refused.UNEXPECTED),
    ],
)
def test_what_a_prefill_rank_does_not_act_on_is_counted(scene: Scene, message: Message, kind: Refused) -> None:
    """By kind, so that an operator tells a restart from an attack. A process that P does not know is asked who it is."""
    scene.pair.p.receive("its route", message, 0.0)

    assert scene.counts() == {kind: 1}
    asked = [(message.sender, Introduce())] if kind in (Refused.STRANGER, Refused.FOREIGN_RECEIVER) else []
    assert [(answer.receiver, answer.body) for _, answer in scene.pair.p.outbox] == asked


@pytest.mark.parametrize(
    ("peer", "message", "kind"),
    [
        (PEER, Message(99, D, 1, Beat(open=[])), Refused.STRANGER),
        (PEER, Message(P, D + 1, 1 << 40, Beat(open=[])), Refused.FOREIGN_RECEIVER),
        (PEER, Message(P, D, 1, Beat(open=[])), Refused.OVERTAKEN),
        (PEER, Message(P, D, 1 << 40, reservation()), Refused.UNEXPECTED),
        (PEER, Message(P + 1, D, 1, hello()), Refused.INTRODUCTION),  # with other weights
        ("tcp://gone:1", Message(P, D, 1 << 40, Beat(open=[])), Refused.STRANGER),  # D has hung up on it
    ],
)
def test_what_a_decode_rank_does_not_act_on_is_counted(
    scene: Scene, peer: str, message: Message, kind: Refused
) -> None:
    scene.pair.d._check_compatible = lambda _: "other weights"

    scene.pair.d.receive(peer, message, 0.0)

    assert scene.counts() == {kind: 1}


def test_a_second_request_with_a_transfer_id_in_use_is_counted(scene: Scene) -> None:
    """Regression: it was never told that it has no transfer, and waited for ever. The first one keeps it."""
    scene.pair.watch()  # the first one, once more
    scene.pair.d.watch("t", "another request", PEER, 0.0)

    assert scene.counts() == {Refused.REUSED_ID: 1}
    [resolved] = scene.pair.resolved()
    assert (resolved.request_id, resolved.ok, resolved.reserved) == ("another request", False, False)
    assert scene.ends_well()


def ends_anothers_transfer(scene: Scene) -> None:
    """P speaks of one that D expects from another prefill rank."""
    scene.pair.d.watch("v", "d-v", "tcp://another:1", 0.0)
    scene.slips_in(Fail(transfer_id="v", epoch=0, dirty=False, reason=""))


LATE: list[Callable[[Scene], object]] = [
    lambda scene: scene.slips_in(Commit(transfer_id="t", epoch=7, tokens=40, prompt_hash=HASH)),
    lambda scene: scene.pair.to_d(Commit(transfer_id="t", epoch=1, tokens=40, prompt_hash=HASH), sender=P + 5),
    lambda scene: scene.slips_in(Fail(transfer_id="u", epoch=1, dirty=True, reason="")),
    lambda scene: scene.slips_in(Fail(transfer_id="t", epoch=0, dirty=False, reason="")),  # before the reservation
    ends_anothers_transfer,
]


@pytest.mark.parametrize("act", LATE)
def test_an_outcome_counts_only_from_the_right_peer_for_the_right_epoch(
    scene: Scene, act: Callable[[Scene], object]
) -> None:
    """No other peer's message commits or fails an epoch."""
    scene.pair.reserve()

    act(scene)

    assert scene.pair.resolved() == []
    assert scene.ends_well()


MISMATCH = Revoke(transfer_id="t", epoch=1, mismatch="x" * 100)


def test_a_complaint_about_what_was_never_committed_is_not_heard(scene: Scene) -> None:
    """It would be an error in the log and a count for the operator, as often as a hostile peer likes."""
    scene.says(MISMATCH)
    scene.says(Revoke(transfer_id="unknown", epoch=1, mismatch="x"))
    assert scene.ends_well()
    scene.says(MISMATCH)  # about another rank's transfer, and no digests went with it

    assert scene.pair.p.complaints == []
    assert scene.counts() == {Refused.UNEXPECTED: 3}


def test_a_complaint_is_heard_once(scene: Scene) -> None:
    """From the rank that the transfer was for, and not answered; then P takes it for failed."""
    commit = Commit(transfer_id="v", epoch=1, tokens=40, prompt_hash=HASH, digests=b"digests!")
    scene.pair.p.tombstones.bury(E, commit)

    for epoch in (2, 1, 1):
        assert scene.says(Revoke(transfer_id="v", epoch=epoch, mismatch="layer.3")) == []

    assert scene.pair.p.complaints == [MismatchReport("v", E, "layer.3")]
    assert scene.counts() == {Refused.UNEXPECTED: 2}
    assert isinstance(scene.pair.p.tombstones.answer(E, "v", 1), Fail)
