"""One key's limits, on clocks that the test moves."""

from dataclasses import replace

import pytest

from baton.proxy.auth.account import Account
from baton.proxy.auth.counts import Counts
from baton.proxy.auth.errors import Denial, InvalidKeyError, KeyLimitError
from baton.proxy.auth.key_file import Key
from tests.support.clock import Clock

KEY = Key(name="a", digests=(b"",))


@pytest.fixture
def clock() -> Clock:
    return Clock()


def account(key: Key, clock: Clock) -> Account:
    return Account(key, Counts([0.0, 0.0]), clock=clock, wall_clock=clock)


def refused(asked: Account) -> tuple[Denial, bytes]:
    """Ask once too often; return why not, and when to come again. It is counted by the key's name."""
    with pytest.raises(KeyLimitError) as caught:
        asked.enter()
    assert caught.value.name == asked.name
    return caught.value.denial, dict(caught.value.headers)[b"retry-after"]


def test_so_many_at_once_and_no_more(clock: Clock) -> None:
    asked = account(replace(KEY, requests_at_once=2), clock)
    asked.enter()
    asked.enter()

    assert refused(asked) == (Denial.AT_ONCE, b"1")
    asked.leave()
    asked.enter()
    assert asked.is_used


def test_a_minutes_worth_at_once_then_evenly(clock: Clock) -> None:
    """Retry-After is when the next one will be let in."""
    asked = account(replace(KEY, requests_per_minute=6), clock)
    for _ in range(6):
        asked.enter()
        asked.leave()

    assert refused(asked) == (Denial.PER_MINUTE, b"10")
    clock.now_s += 4.5
    assert refused(asked) == (Denial.PER_MINUTE, b"6")
    clock.now_s += 5.5
    asked.enter()
    assert refused(asked) == (Denial.PER_MINUTE, b"10")
    clock.now_s += 600
    for _ in range(6):
        asked.enter()
    assert refused(asked)[0] is Denial.PER_MINUTE


def test_what_is_refused_is_not_counted(clock: Clock) -> None:
    """A client whose request is refused does not wait longer for it."""
    asked = account(replace(KEY, requests_at_once=1, requests_per_minute=2), clock)
    asked.enter()
    for _ in range(5):
        assert refused(asked)[0] is Denial.AT_ONCE
    asked.leave()
    asked.enter()
    asked.leave()

    assert refused(asked) == (Denial.PER_MINUTE, b"30")


def test_a_changed_limit_counts_at_once_and_what_was_counted_stays(clock: Clock) -> None:
    """A key that stays in the file begins no count again."""
    asked = account(replace(KEY, requests_at_once=3, requests_per_minute=60), clock)
    asked.enter()
    asked.enter()
    asked.key = replace(KEY, requests_at_once=2, requests_per_minute=60)

    assert refused(asked)[0] is Denial.AT_ONCE
    asked.key = replace(KEY, requests_per_minute=60)
    for _ in range(58):
        asked.enter()
    assert refused(asked) == (Denial.PER_MINUTE, b"1")


def test_a_key_expires_at_its_second(clock: Clock) -> None:
    asked = account(replace(KEY, expires_at_s=clock.now_s + 1), clock)
    asked.check_valid()
    clock.now_s += 1

    with pytest.raises(InvalidKeyError, match="expired") as caught:
        asked.check_valid()
    assert caught.value.denial is Denial.EXPIRED
