"""What a peer that holds the secret may have is bounded, and others do not feel it."""

import pytest

from baton.kv_connector.handoff import consumer, peer_quotas
from baton.kv_connector.handoff.outgoing import Prompt
from baton.kv_connector.handoff.peer_quotas import PeerQuotas
from baton.kv_connector.handoff.producer import UNWANTED
from baton.kv_connector.protocol.messages import Beat, Fail, OpenEpoch, Revoke
from baton.kv_connector.telemetry.refusals import Refused
from tests.unit.kv_connector.handoff.hostile_rank import E, Scene, greeting
from tests.unit.kv_connector.handoff.machines import SETTINGS, D, Pair, reservation


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
