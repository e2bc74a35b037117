"""What P remembers of ended transfers."""

from msgspec.structs import replace

from baton.kv_connector.handoff.tombstones import Tombstones
from baton.kv_connector.protocol.messages import Commit, Fail

COMMIT = Commit(transfer_id="t", epoch=1, tokens=40, prompt_hash=b"")
D = 21


def buried(outcome: Commit | Fail = COMMIT) -> Tombstones:
    """One transfer has ended."""
    tombstones = Tombstones()
    tombstones.bury(D, outcome)
    return tombstones


def test_an_outcome_is_repeated_to_who_asks_for_its_epoch() -> None:
    """A lost commit is found again. P cannot say anything about what it never heard of."""
    assert buried().answer(D, "t", 1) == COMMIT
    assert "t" in buried()
    assert buried().answer(D, "u", 1) is None


def test_a_repeated_commit_says_all_that_d_decides_by_and_no_timings() -> None:
    """The timings, of which each commit has its own, are most of what 65,536 commits would take."""
    said = replace(COMMIT, shards=2, shares=8, cached_tokens=16, digests=b"digests!")

    tombstones = buried(replace(said, timings_s={"scheduled": 0.0, "commit": 0.5}, pushing_s=0.25))
    tombstones.bury(D, replace(COMMIT, transfer_id="u", timings_s={"scheduled": 0.0}))

    repeated, other = tombstones.answer(D, "t", 1), tombstones.answer(D, "u", 1)
    assert repeated == said
    assert isinstance(repeated, Commit)
    assert isinstance(other, Commit)
    assert repeated.timings_s is other.timings_s


def test_another_epoch_failed_cleanly() -> None:
    """Only the committed epoch was written to, so any other one may be given back at once."""
    dirty = Fail(transfer_id="t", epoch=1, dirty=True, reason="a push failed")

    answer = buried(dirty).answer(D, "t", 2)

    assert answer == Fail(transfer_id="t", epoch=2, dirty=False, reason="a push failed")


def test_a_restarted_decode_rank_does_not_inherit_a_commit() -> None:
    """Regression: D restarted, ran the same id with epoch 1 again, and resumed on its predecessor's commit."""
    answer = buried().answer(D + 1, "t", 1)

    assert isinstance(answer, Fail)
    assert not answer.dirty


def test_the_oldest_are_forgotten() -> None:
    """The memory is bounded."""
    tombstones = Tombstones(capacity=2)
    for name in ("a", "b", "a", "c"):
        tombstones.bury(D, Fail(transfer_id=name, epoch=1, dirty=False, reason=""))

    assert len(tombstones._outcomes) == 2
    assert [name in tombstones for name in "abc"] == [True, False, True]


def test_a_rank_that_ends_transfers_without_end_pushes_out_only_its_own() -> None:
    """Another's commit can still be repeated after any number of them."""
    tombstones = Tombstones(capacity=10)
    tombstones.bury(D, COMMIT)
    for number in range(1_000):
        tombstones.bury(99, Fail(transfer_id=f"u{number}", epoch=1, dirty=False, reason=""))

    assert len(tombstones._outcomes) == 10
    assert tombstones.answer(D, "t", 1) == COMMIT
    assert "u999" in tombstones


def test_nothing_is_kept_of_ranks_whose_transfers_are_forgotten() -> None:
    """Ranks restart for ever; the memory of them is bounded as well. An id that ends again changes hands."""
    tombstones = Tombstones(capacity=10)
    for owner in range(1, 1_000):
        tombstones.bury(owner, Fail(transfer_id=f"u{owner}", epoch=1, dirty=False, reason=""))
    assert len(tombstones._outcomes) == len(tombstones._by_owner) == 10

    for owner in range(2_000, 2_100):
        tombstones.bury(owner, Fail(transfer_id="t", epoch=2, dirty=False, reason=""))
    assert len(tombstones._outcomes) == len(tombstones._by_owner) == 10
    assert 2_099 in tombstones._by_owner
