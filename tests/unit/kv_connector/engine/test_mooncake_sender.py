"""How Mooncake is fed, against one that does what the test says. The real one: tests/integration."""

from collections.abc import Iterator
from typing import Any

import pytest

from baton.kv_connector.engine.mooncake_sender import MooncakeSender
from baton.kv_connector.engine.spans import Spans
from baton.kv_connector.errors import EngineError
from baton.kv_connector.layout.copy_plan import Copy, CopyPlan

COPIES = [Copy(1_000 + i, 5_000 + i, 1) for i in range(10)]


class FakeMooncake:
    """Writes end when the test says how."""

    def __init__(self) -> None:
        self.writes: list[tuple[Any, ...]] = []
        self.statuses: dict[int, int] = {}

    def transfer_submit_write(self, *write: Any) -> int:
        """Take a write; ids begin at 1."""
        self.writes.append(write)
        self.statuses[len(self.writes)] = 0
        return len(self.writes)

    def transfer_check_status(self, write: int) -> int:
        return self.statuses[write]

    def end(self, count: int, status: int = 1) -> None:
        """Let the oldest running writes end."""
        for write in [write for write, status in self.statuses.items() if status == 0][:count]:
            self.statuses[write] = status


class CountingPlan(CopyPlan):
    """Counts the copies that were made of it."""

    made = 0

    def __iter__(self) -> Iterator[Copy]:
        for copy in super().__iter__():
            self.made += 1
            yield copy


@pytest.fixture
def mooncake() -> FakeMooncake:
    return FakeMooncake()


@pytest.fixture
def answers() -> dict[str, bool | None]:
    """What is known of targets; those that are not named answer."""
    return {}


@pytest.fixture
def sender(mooncake: FakeMooncake, answers: dict[str, bool | None]) -> MooncakeSender:
    """At most four writes in flight to a target."""
    return MooncakeSender(
        mooncake,
        Spans([(1_000, 10)]),
        max_in_flight=4,
        push_timeout_s=100,
        answered=lambda target: answers.get(target, True),
    )


@pytest.mark.parametrize(("answered", "outcome", "writes"), [(True, None, 4), (False, False, 0)])
def test_no_write_is_begun_before_the_target_has_answered(
    sender: MooncakeSender,
    mooncake: FakeMooncake,
    answers: dict[str, bool | None],
    *,
    answered: bool,
    outcome: bool | None,
    writes: int,
) -> None:
    """Mooncake would wait a minute for one that says nothing, in the thread that pushes to all of them."""
    answers["d"] = None
    push = sender.submit("d", CopyPlan.of(COPIES))
    assert (push.poll(), mooncake.writes) == (None, [])

    answers["d"] = answered
    assert (push.poll(), len(mooncake.writes)) == (outcome, writes)


def test_a_push_that_waits_gets_the_places_of_writes_that_a_failed_one_left_behind(
    sender: MooncakeSender, mooncake: FakeMooncake
) -> None:
    failed, waiting = sender.submit("d", CopyPlan.of(COPIES)), sender.submit("d", CopyPlan.of(COPIES))
    mooncake.end(1, status=-1)
    assert failed.poll() is False
    assert (waiting.poll(), len(mooncake.writes)) == (None, 5)
    mooncake.end(3)
    mooncake.end(1)

    assert (waiting.poll(), len(mooncake.writes)) == (None, 9)


def test_copies_are_taken_from_the_plan_as_they_may_be_begun(sender: MooncakeSender, mooncake: FakeMooncake) -> None:
    """A long plan is never made into tuples at once; in the end each copy has been written once, in order."""
    plan = CountingPlan.of(COPIES)

    push = sender.submit("d", plan)
    assert (len(mooncake.writes), plan.made) == (4, 4)
    mooncake.end(3)
    assert push.poll() is None
    assert (len(mooncake.writes), plan.made) == (7, 7)
    while push.poll() is None:
        mooncake.end(4)

    assert push.poll() is True
    assert mooncake.writes == [("d", *copy) for copy in COPIES]
    assert not sender._in_flight


def test_a_failed_push_begins_no_further_copy(sender: MooncakeSender, mooncake: FakeMooncake) -> None:
    """What is in flight may go on, and counts until it has ended; what is not stays where it is."""
    push = sender.submit("d", CopyPlan.of(COPIES))
    mooncake.end(1, status=-1)

    assert push.poll() is False
    sender.submit("d", CopyPlan.of(COPIES))
    assert len(mooncake.writes) == 4 + 1
    mooncake.end(4)
    assert push.poll() is False
    assert len(mooncake.writes) == 4 + 1
    sender.submit("d", CopyPlan.of(COPIES))
    assert len(mooncake.writes) == 4 + 1 + 3


@pytest.mark.parametrize("refusal", [0, (1 << 64) - 1])
def test_a_write_that_mooncake_refuses_fails_its_push_and_takes_no_place(
    sender: MooncakeSender, mooncake: FakeMooncake, monkeypatch: pytest.MonkeyPatch, refusal: int
) -> None:
    with monkeypatch.context() as refusing:
        refusing.setattr(mooncake, "transfer_submit_write", lambda *_: refusal)
        assert sender.submit("d", CopyPlan.of(COPIES)).poll() is False

    sender.submit("d", CopyPlan.of(COPIES))
    assert len(mooncake.writes) == 4


def test_a_push_that_was_not_looked_after_does_not_fail_at_its_next_look(
    sender: MooncakeSender, mooncake: FakeMooncake
) -> None:
    """What waits for polls was not late by itself: a sender that stood still for an hour goes on where it was."""
    clock = iter([0.0, 0.0, 3600.0, 3600.01, 3600.02, 3600.03])
    sender.now = lambda: next(clock)
    push = sender.submit("d", CopyPlan.of(COPIES))
    mooncake.end(4)

    assert push.poll() is None
    while push.poll() is None:
        mooncake.end(4)
    assert push.poll() is True


def test_a_push_that_takes_too_long_fails(sender: MooncakeSender, mooncake: FakeMooncake) -> None:
    """100 s of being looked after every 50 ms."""
    clock = iter([i * 0.05 for i in range(10_000)])
    sender.now = lambda: next(clock)
    push = sender.submit("d", CopyPlan.of(COPIES))
    polls = 1
    while push.poll() is None:
        polls += 1

    assert push.poll() is False
    assert polls == pytest.approx(2_000, abs=5)


def test_another_target_has_its_own_bound(sender: MooncakeSender, mooncake: FakeMooncake) -> None:
    """A decode rank that takes nothing holds up no other."""
    sender.submit("d", CopyPlan.of(COPIES))
    sender.submit("e", CopyPlan.of(COPIES))

    assert [write[0] for write in mooncake.writes] == ["d"] * 4 + ["e"] * 4


def test_a_plan_with_a_foreign_source_begins_nothing(sender: MooncakeSender, mooncake: FakeMooncake) -> None:
    """Not even the copies before it."""
    with pytest.raises(EngineError, match="not registered"):
        sender.submit("d", CopyPlan.of([*COPIES, Copy(999, 0, 1)]))

    assert mooncake.writes == []
