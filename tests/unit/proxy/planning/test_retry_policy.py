import pytest

from baton.proxy.errors import FailureKind
from baton.proxy.planning.retry_policy import FLOOR_PER_S, MIN_LEFT_S, History, RetryDenial, RetryPolicy
from tests.support.clock import Clock
from tests.support.described import node_info
from tests.unit.proxy.members import node


def policy(*, share: float, burst: int, clock: Clock | None = None) -> RetryPolicy:
    return RetryPolicy(share=share, burst=burst, max_attempts=4, clock=clock or Clock())


def spend_all(retries: RetryPolicy) -> int:
    spent = 0
    while retries.left:
        retries.spend()
        spent += 1
    return spent


def test_the_budget_starts_full() -> None:
    """The loss of a node right after the start is made good; a payment for an attempt that was not made may be spent again."""
    retries = policy(share=0.0, burst=7)
    assert spend_all(retries) == 7

    retries.give_back()

    assert spend_all(retries) == 1


def test_an_empty_budget_is_refilled_by_requests() -> None:
    retries = policy(share=0.25, burst=7)
    spend_all(retries)

    left = []
    for _ in range(9):
        retries.earn()
        left.append(retries.left)

    assert left == [0, 0, 0, 1, 1, 1, 1, 2, 2]


def test_the_budget_is_refilled_by_time_and_never_holds_more_than_its_burst() -> None:
    """A proxy with few requests may retry too; a quiet week does not pay for a storm."""
    clock = Clock()
    retries = policy(share=1.0, burst=5, clock=clock)
    spend_all(retries)
    clock.now_s += 3 / FLOOR_PER_S
    assert spend_all(retries) == 3

    clock.now_s += 1e6
    for _ in range(50):
        retries.earn()
        retries.give_back()

    assert spend_all(retries) == 5


@pytest.mark.parametrize(
    ("attempts", "left_s", "burst", "denied"),
    [
        (1, 10.0, 5, None),
        (3, 10.0, 5, None),
        (4, 10.0, 5, RetryDenial.ATTEMPTS),
        (1, MIN_LEFT_S / 2, 5, RetryDenial.DEADLINE),
        (1, 10.0, 0, RetryDenial.BUDGET),
    ],
)
def test_a_retry_is_denied_for_a_reason(attempts: int, left_s: float, burst: int, denied: RetryDenial | None) -> None:
    history = History()
    for _ in range(attempts):
        history = history.without(node("decode"))

    retries = policy(share=0.2, burst=burst)

    assert retries.denied(history, left_s) == denied


def test_the_history_knows_who_failed() -> None:
    maker, taker = node("prefill"), node("decode")

    history = History().without(maker).without(taker)

    assert history.attempts == 2
    assert history.has_lost(maker)
    assert history.has_lost(taker)
    taker.info = node_info("decode", incarnation="another")
    assert not history.has_lost(taker)


def test_a_node_that_is_drained_has_not_failed() -> None:
    """It may be asked again when it is back."""
    assert History().after(node("decode"), FailureKind.DRAINED) == History()


def test_only_a_decode_node_that_did_not_answer_in_time_may_be_asked_again() -> None:
    """It was never connected to, or has the request; a prefill node's silence costs the request another prefill node."""
    maker, taker = node("prefill"), node("decode")

    assert History().after(taker, FailureKind.TIMEOUT) == History(attempts=1)
    assert History().after(taker, FailureKind.CONNECT).has_lost(taker)
    assert History().after(maker, FailureKind.TIMEOUT).has_lost(maker)
