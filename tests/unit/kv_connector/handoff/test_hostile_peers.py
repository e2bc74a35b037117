"""Peers that hold the secret and abuse it: what they ask for is bounded and counted, and others do not feel it."""

from collections import Counter
from collections.abc import Callable

import msgspec
import pytest

from baton.contracts.node_info import RegionInfo
from baton.kv_connector.handoff import consumer, peer_quotas
from baton.kv_connector.handoff.outgoing import MismatchReport, Prompt
from baton.kv_connector.handoff.peer_quotas import PeerQuotas
from baton.kv_connector.handoff.producer import UNWANTED
from baton.kv_connector.protocol.messages import (
    Beat,
    Body,
    Commit,
    Fail,
    Hello,
    Introduce,
    Message,
    OpenEpoch,
    Revoke,
    Started,
)
from baton.kv_connector.telemetry.refusals import Refused
from tests.unit.kv_connector.handoff.machines import HASH, PEER, SETTINGS, D, P, Pair, hello, reservation

E = 31  # incarnation of a decode rank that is up to no good
POOL = 50  # blocks that it says it has


class Scene:
    """A pair that gets on well, and a second decode rank that knows the names of everything."""

    def __init__(self) -> None:
        self.pair = Pair()
        self.refused: list[Refused] = []
        self.pair.p._count = self.pair.d._count = self.refused.append
        self.pair.watch()
        self.says(greeting())
        self.refused.clear()

    def says(self, body: Body, sender: int = E) -> list[Body]:
        """The second rank says something; returns what it is answered."""
        self.pair.talk()
        self.pair.sequence += 1
        receiver = 0 if isinstance(body, Hello) else P
        self.pair.p.receive("its route", Message(sender, receiver, self.pair.sequence, body), self.pair.now)
        answers = [message.body for route, message in self.pair.p.outbox if route == "its route"]
        self.pair.p.outbox = [item for item in self.pair.p.outbox if item[0] != "its route"]
        return answers

    def slips_in(self, body: Body) -> None:
        """P tells the good rank something that it would not say by itself."""
        self.pair.d.receive(PEER, self.pair.p.sessions[D].stamp(body), self.pair.now)

    def counts(self) -> Counter[Refused]:
        return Counter(self.refused)

    def ends_well(self) -> bool:
        """Whether the good transfer arrives."""
        if not self.pair.d.transfers["t"].wish:
            self.pair.reserve()
        self.pair.start()
        self.pair.write()
        self.pair.push()
        return [resolved.ok for resolved in self.pair.resolved()] == [True]


@pytest.fixture
def scene() -> Scene:
    """The transfer `t` is watched by the good rank; nothing is reserved."""
    return Scene()


def greeting(pool: int = POOL) -> Hello:
    """An introduction with one region."""
    region = RegionInfo(name="l", layer=0, base_addr=0, block_bytes=1, stride_bytes=1, num_blocks=pool)
    return msgspec.structs.replace(hello("e"), regions=[region])


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


def test_open_transfers_are_bounded_for_each_rank(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have so many and no more, and again as many when they have ended."""
    monkeypatch.setattr(peer_quotas, "MAX_TRANSFERS_EACH", 5)
    for name in range(20):
        scene.says(reservation(f"u{name}"))
    assert len(scene.pair.p.transfers) == 6
    assert scene.counts() == {Refused.TOO_MUCH: 15}

    scene.says(Beat(open=[OpenEpoch(f"w{name}", 0) for name in range(20)]))  # the others are no longer wanted
    scene.says(Beat(open=[OpenEpoch(f"w{name}", 0) for name in range(20)]))

    assert sorted(scene.pair.p.transfers) == ["t", "w0", "w1", "w2", "w3", "w4"]
    assert scene.ends_well()


def test_transfers_without_a_prompt_are_bounded_over_all_ranks(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts that start here always find a place."""
    monkeypatch.setattr(peer_quotas, "MAX_UNSTARTED", 3)
    for name in "xyz":  # prompts that have ended make no room for more of them
        scene.pair.p.start(name, f"r-{name}", Prompt(16, 1, b""), 0.0)
        scene.pair.p.void(f"r-{name}", "preempted", 0.0)
    for number in range(10):
        scene.says(Beat(open=[OpenEpoch(f"u{i}", 0) for i in range(number)]))
    assert len(scene.pair.p.transfers) == 3
    assert set(scene.counts()) == {Refused.TOO_MUCH}

    for name in "abc":
        scene.pair.p.start(name, f"r-{name}", Prompt(16, 1, b""), 0.0)

    assert len(scene.pair.p.transfers) == 6
    assert scene.ends_well()


def test_reserved_blocks_are_bounded_for_each_rank(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """So are places without a block, of which a layer with a window has many; what has ended counts no more."""
    monkeypatch.setattr(peer_quotas, "MAX_BLOCKS_EACH", 10)
    monkeypatch.setattr(peer_quotas, "MAX_PLACES_EACH", 100)
    claims = scene.pair.p._quotas
    for name in range(9):
        assert scene.says(reservation(f"u{name}", blocks=[[0] * 10 + [1]])) == []
    assert (claims.blocks[E], claims.places[E]) == (9, 99)

    for more in ([0, 1], [1, 2]):  # a place too many, and a block too many
        [answer] = scene.says(reservation("v", blocks=[more]))
        assert isinstance(answer, Fail)
        assert "too_much" in answer.reason
    assert scene.says(reservation("u9", blocks=[[1]])) == []  # all that there is

    for name in range(10):
        scene.says(Revoke(transfer_id=f"u{name}", epoch=1))
    for watched in ([OpenEpoch("w", 0)], []):
        scene.says(Beat(open=watched))
    assert not any(E in counter for counter in (claims.blocks, claims.places, claims.transfers))
    assert scene.says(reservation("v")) == []


def test_processes_that_introduce_themselves_are_bounded(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that P knows are served on; a newcomer gets in when one of the crowd has been silent for long enough."""
    monkeypatch.setattr(peer_quotas, "MAX_PEERS", 4)
    for sender in range(100, 120):
        scene.says(greeting(), sender=sender)
    assert len(scene.pair.p.sessions) == len(scene.pair.p._routes) == len(scene.pair.p._hellos) == 4
    assert scene.counts() == {Refused.TOO_MANY_PEERS: 18}
    scene.says(greeting())  # one of those that are known says it again
    assert scene.counts() == {Refused.TOO_MANY_PEERS: 18}

    scene.pair.after(SETTINGS.peer_timeout_s + 1)

    assert scene.says(greeting(), sender=200) != []
    assert scene.ends_well()


def test_an_introduction_that_is_refused_is_not_kept(scene: Scene) -> None:
    """It may be as long as a frame; only its reason stays, for the operator. Nothing that its sender says is heard."""
    scene.pair.p._check_compatible = lambda _: "other weights"

    for sender in (77, E):  # E had been accepted before
        scene.says(greeting(), sender=sender)
        scene.says(reservation("u"), sender=sender)

    assert 77 in scene.pair.p.sessions
    assert 77 not in scene.pair.p._hellos
    assert "u" not in scene.pair.p.transfers
    assert scene.counts() == {Refused.INTRODUCTION: 2, Refused.NOT_OPEN: 2}


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


def test_a_decode_rank_opens_no_more_than_a_prefill_rank_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond that the request is computed here, at once, and nothing is left of it."""
    monkeypatch.setattr(consumer, "MAX_OPEN", 2)
    pair = Pair()
    for name in "abc":
        pair.watch(name)

    assert [(resolved.request_id, resolved.ok) for resolved in pair.resolved()] == [("d-c", False)]
    assert set(pair.d.transfers) == set(pair.p.transfers) == {"a", "b"}
    pair.d.watch("e", "d-e", "tcp://another:1", 0.0)
    assert pair.resolved() == [], "the bound is for each prefill rank"


def test_a_second_request_with_a_transfer_id_in_use_is_counted(scene: Scene) -> None:
    """Regression: it was never told that it has no transfer, and waited for ever. The first one keeps it."""
    scene.pair.watch()  # the first one, once more
    scene.pair.d.watch("t", "another request", PEER, 0.0)

    assert scene.counts() == {Refused.REUSED_ID: 1}
    [resolved] = scene.pair.resolved()
    assert (resolved.request_id, resolved.ok, resolved.reserved) == ("another request", False, False)
    assert scene.ends_well()


def test_engines_that_a_rank_has_named_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank that fences often names many, one after the other: the newest stay its own."""
    monkeypatch.setattr(peer_quotas, "MAX_ENGINES_EACH", 3)
    held = PeerQuotas()
    for number in range(10):
        held.reserve(D, reservation(engine=f"e{number}"))
        held.reserve(D, reservation(engine=f"e{number}"))

    assert held.owners == {"e7": D, "e8": D, "e9": D}
    held.forget(D)
    held.forget(D)
    assert held.owners == {}


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


def test_one_beat_makes_a_prefill_rank_do_a_bounded_amount(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Begin, answer or end: the rest waits for the next beats, and others do not wait for it."""
    monkeypatch.setattr(peer_quotas, "BEAT_BUDGET", 3)
    listed = Beat(open=[OpenEpoch(f"u{number}", 0) for number in range(8)])
    grown = [len(scene.says(listed)) and len(scene.pair.p.transfers) - 1 for _ in range(4)]
    assert grown == [3, 6, 8, 8]

    ended = [[type(answer) for answer in scene.says(Beat(open=[]))].count(Fail) for _ in range(4)]
    assert ended == [3, 3, 2, 0]

    answered = [type(answer) for answer in scene.says(listed)].count(Fail)
    assert answered == 3
    assert scene.ends_well()


def test_a_prompt_that_is_not_wanted_any_more_is_let_go_at_once(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """It holds blocks: the bound of a beat is not for it (I5)."""
    monkeypatch.setattr(peer_quotas, "BEAT_BUDGET", 2)
    names = [f"u{number}" for number in range(6)]
    for name in names:
        scene.pair.p.start(name, f"r-{name}", Prompt(16, 1, b""), 0.0)
        scene.pair.p.hold(f"r-{name}", 0.0)
    scene.says(Beat(open=[OpenEpoch(name, 0) for name in names]))

    ended = [answer for answer in scene.says(Beat(open=[])) if isinstance(answer, Fail)]

    assert [(fail.transfer_id, fail.dirty, fail.reason) for fail in ended] == [
        (name, False, UNWANTED) for name in names
    ]
    assert scene.pair.p.released == [f"r-{name}" for name in names]
