"""A queue and its thread; the test holds the thread where it wants."""

import logging
import threading

import pytest

from baton.proxy.tracing.background import Background

WAIT_S = 30.0


class Handler:
    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.began = threading.Event()
        self.may_go_on = threading.Event()

    def __call__(self, batch: list[int]) -> bool:
        self.batches.append(batch)
        self.began.set()
        assert self.may_go_on.wait(WAIT_S)
        return True


def test_all_that_was_offered_is_handled_before_the_end() -> None:
    """In order, in batches of what was asked for."""
    handled: list[list[int]] = []

    def handle(batch: list[int]) -> bool:
        handled.append(batch)
        return True

    queue = Background("test", handle, most=10, batch=2, gather_s=60.0)
    for number in range(5):
        queue.offer(number)
    queue.start()
    queue.stop(WAIT_S)
    queue.stop(WAIT_S)

    assert handled == [[0, 1], [2, 3], [4]]
    assert (queue.done, queue.failed, queue.dropped) == (5, 0, 0)


def held(most: int) -> tuple[Background[int], Handler]:
    """A queue whose thread has its first batch."""
    handler = Handler()
    queue = Background("test", handler, most=most, batch=1, gather_s=0.0)
    queue.start()
    queue.offer(0)
    assert handler.began.wait(WAIT_S)
    return queue, handler


def test_what_finds_the_queue_full_is_dropped_and_counted() -> None:
    """A caller of `offer` never waits, although the handler hangs."""
    queue, handler = held(most=2)
    for number in range(1, 6):
        queue.offer(number)

    assert queue.dropped == 3
    handler.may_go_on.set()
    queue.stop(WAIT_S)
    assert handler.batches == [[0], [1], [2]]


def test_the_end_does_not_wait_for_a_handler_that_hangs() -> None:
    """What is left then is dropped, and so is what comes later."""
    queue, handler = held(most=10)
    queue.offer(1)
    queue.stop(0.01)
    queue.offer(2)

    assert queue.dropped == 2
    handler.may_go_on.set()


def test_a_batch_that_fails_is_counted_and_the_next_one_handled(caplog: pytest.LogCaptureFixture) -> None:
    answers = iter((False, ZeroDivisionError(), True))

    def handle(_: list[int]) -> bool:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    queue = Background("test", handle, most=10, batch=1, gather_s=60.0)
    for number in range(3):
        queue.offer(number)
    with caplog.at_level(logging.ERROR):
        queue.start()
        queue.stop(WAIT_S)

    assert (queue.done, queue.failed) == (1, 2)
    assert [record.message for record in caplog.records] == ["a batch could not be handled"]
