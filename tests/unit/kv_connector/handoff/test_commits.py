"""What is pushed of a prompt, when it is committed, and what is made of that."""

import pytest

from baton.kv_connector.protocol.messages import Commit, Fail, SampledToken
from tests.unit.kv_connector.handoff.machines import HASH, PROMPT, D, Pair, committed, outcome, ready_to_push, reserved


def test_commit_follows_the_last_push() -> None:
    """Every block of every layer returned 0: the epoch is committed with what D needs to check and to bill it."""
    pair = Pair()
    pair.reserve()
    pair.start(prompt=PROMPT._replace(cached_tokens=16))
    pair.write()

    pair.push()

    commit = committed(pair)
    assert (commit.epoch, commit.tokens, commit.prompt_hash, commit.cached_tokens) == (1, 40, HASH, 16)
    assert commit.digests == b""  # not among the transfers that are verified
    marks = {"scheduled", "reserved", "first_layer", "last_layer", "first_push", "last_push", "commit"}
    assert set(commit.timings_s) == marks
    assert not pair.p.transfers


def test_a_commit_says_how_long_something_was_being_pushed() -> None:
    """Overlapping pushes count once and pauses not at all; the first push is timed from its beginning."""
    pair = ready_to_push()
    first, second = pair.next_push(2), pair.next_push(2)
    pair.p.push_begun(first, 1.0)
    pair.p.push_begun(second, 2.0)
    pair.p.push_done(first, True, 3.0)
    pair.p.push_done(second, True, 4.0)
    third = pair.next_push(2)
    pair.p.push_begun(third, 6.0)
    pair.p.push_done(third, True, 6.5)

    commit = committed(pair)

    assert commit.pushing_s == 3.5
    assert [commit.timings_s[name] for name in ("first_push", "last_push", "commit")] == [1.0, 6.5, 6.5]


def test_chunks_are_pushed_as_they_are_written() -> None:
    """Each chunk's blocks go out once; events of a layer may come in another order than the steps that they belong to."""
    pair = reserved()
    pair.write(blocks=1)
    pair.push()
    assert pair.p.transfers
    pair.write(blocks=1)
    assert not pair.pushes()

    pair.write(blocks=3)
    pair.write(blocks=1)
    pair.push()

    assert isinstance(outcome(pair), Commit)


def test_two_transfers_are_pushed_in_turn() -> None:
    """The one that had something to push first goes first, whatever it pushed before; neither disturbs the other."""
    pair = Pair()
    for name in ("t", "u"):
        pair.reserve(name, epoch=ord(name))
        pair.start(name)
    pair.write("t", blocks=1)
    pair.push()
    pair.write("u")
    pair.write("t")

    pushes = pair.pushes()
    assert [push.transfer.transfer_id for push in pushes] == ["u", "t"]
    pair.p.push_done(pushes[0], False, 0.0)
    pair.p.push_done(pushes[1], True, 0.0)
    pair.talk()

    assert {r.transfer_id: r.ok for r in pair.resolved()} == {"u": False, "t": True}


def test_a_failed_push_makes_the_epoch_dirty_at_once() -> None:
    """E1: no retry, no commit; D is told to fence even while another push is under way."""
    pair = ready_to_push()
    first, second = pair.next_push(3), pair.next_push(2)

    pair.p.push_done(first, False, 0.0)
    assert pair.p.next_push(lambda _: 3) is None
    pair.p.push_done(second, True, 0.0)

    assert outcome(pair) == Fail(transfer_id="t", epoch=1, dirty=True, reason="a push failed")
    assert len(pair.p.ended) == 1
    assert second.transfer.in_flight == 0


def test_a_busy_decode_rank_holds_up_no_other() -> None:
    """Transfers to it keep their turn."""
    pair = ready_to_push()
    assert pair.p.next_push(lambda _: 3, busy={D}) is None

    assert pair.p.next_push(lambda _: 3, busy={22}) is not None


def test_a_call_to_a_decode_rank_has_at_most_its_own_units() -> None:
    pair = ready_to_push()
    sizes = []
    for bound in (2, 1, 2):
        push = pair.p.next_push({D: bound, 22: 9}.__getitem__)
        assert push is not None
        sizes.append(sum(stop - start for _, start, stop in push.pieces))

    assert sizes == [2, 1, 2]


def pushed() -> Pair:
    """Everything has arrived; the first token has not been sampled."""
    pair = Pair()
    pair.reserve()
    pair.start(prompt=PROMPT._replace(samples=True))
    pair.write()
    pair.push()
    return pair


def test_commit_waits_for_the_first_token_and_carries_it() -> None:
    """The first that is sampled: what a later step samples is another one."""
    pair = pushed()
    assert not pair.p.ended

    pair.p.token_sampled("p-t", SampledToken(id=7), 0.0)
    pair.p.token_sampled("p-t", SampledToken(id=8), 0.0)

    assert committed(pair).first == SampledToken(id=7)


@pytest.mark.parametrize("samples", [True, False])
def test_a_token_that_comes_before_the_last_push_waits_for_it(samples: bool) -> None:
    """A token that was not asked for is not sent: the decode node would start with a token that was chosen greedily."""
    pair = Pair()
    pair.reserve()
    pair.start(prompt=PROMPT._replace(samples=samples))
    pair.p.token_sampled("p-t", SampledToken(id=7), 0.0)
    assert not pair.p.ended

    pair.write()
    pair.push()

    assert committed(pair).first == (SampledToken(id=7) if samples else None)


def test_a_prompt_that_has_ended_commits_without_a_token() -> None:
    """Its step's output did not name one: the decode node samples it then."""
    pair = pushed()

    pair.p.hold("p-t", 0.0)

    assert committed(pair).first is None


@pytest.mark.parametrize(("tokens", "prompt_hash"), [(41, HASH), (40, b"another")])
def test_a_commit_of_another_prompt_is_not_used(tokens: int, prompt_hash: bytes) -> None:
    """I7: nothing more will be written, so the blocks come back, but the request recomputes."""
    pair = ready_to_push()

    pair.to_d(Commit(transfer_id="t", epoch=1, tokens=tokens, prompt_hash=prompt_hash))

    [resolved] = pair.resolved()
    assert resolved.reason == "the prefill node committed another prompt"
    assert pair.d.closed == ["d-t"]
