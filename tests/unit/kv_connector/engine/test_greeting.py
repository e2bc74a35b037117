import threading
import time
from unittest.mock import Mock

import pytest

from baton.kv_connector.engine import greeting
from baton.kv_connector.engine.greeting import PeerReachability
from baton.kv_connector.errors import EngineError


class Peers:
    """Answers when it is told to, or not at all."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int]] = []
        self.may_answer = threading.Event()
        self.alive = True

    def ask(self, host: str, port: int) -> None:
        self.asked.append((host, port))
        assert self.may_answer.wait(5)
        if not self.alive:
            raise EngineError("it does not answer")


def end_of(greetings: PeerReachability, target: str) -> bool:
    give_up = time.monotonic() + 5
    while (answered := greetings.answered(target)) is None:
        assert time.monotonic() < give_up
        time.sleep(0.001)
    return answered


def test_no_caller_waits_while_a_target_is_asked() -> None:
    """The answer is not known yet, and the target is asked once however often one wants to know."""
    peers = Peers()
    greetings = PeerReachability(peers.ask)

    assert [greetings.answered("10.0.0.1:15000") for _ in range(3)] == [None] * 3
    peers.may_answer.set()
    assert end_of(greetings, "10.0.0.1:15000") is True
    assert peers.asked == [("10.0.0.1", 15000)]


def test_a_silent_target_is_asked_again_by_the_next_who_wants_to_know() -> None:
    peers = Peers()
    peers.alive = False
    peers.may_answer.set()
    greetings = PeerReachability(peers.ask)
    assert end_of(greetings, "10.0.0.1:15000") is False

    peers.alive = True

    assert end_of(greetings, "10.0.0.1:15000") is True


def test_a_target_that_could_not_be_asked_for_want_of_a_thread_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Transfers to it would wait for an answer that never comes."""
    peers = Peers()
    peers.may_answer.set()
    greetings = PeerReachability(peers.ask)
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", Mock(side_effect=RuntimeError("can't start new thread")))
        assert greetings.answered("10.0.0.1:15000") is None

    assert end_of(greetings, "10.0.0.1:15000") is True


def test_nor_does_anything_wait_for_a_target_after_a_fault_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    told = threading.Event()
    monkeypatch.setattr(threading, "excepthook", lambda _: told.set())

    assert end_of(PeerReachability(Mock(side_effect=RuntimeError("a fault"))), "10.0.0.1:15000") is False
    assert told.wait(5)


def test_a_name_that_is_no_address_does_not_answer() -> None:
    """It is refused as a push to it would be."""
    assert end_of(PeerReachability(Peers().ask), "nonsense") is False


def test_an_address_of_ipv6_is_taken_out_of_its_brackets() -> None:
    """As sockets want it."""
    peers = Peers()
    peers.may_answer.set()

    assert end_of(PeerReachability(peers.ask), "[fd00::1]:15000") is True
    assert peers.asked == [("fd00::1", 15000)]


def test_of_many_targets_the_oldest_are_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each fence gives a receiver a new name, and old ones are not kept for ever."""
    monkeypatch.setattr(greeting, "MAX_REMEMBERED", 2)
    peers = Peers()
    peers.may_answer.set()
    greetings = PeerReachability(peers.ask)
    for target in ("a:1", "b:2", "c:3"):
        assert end_of(greetings, target) is True

    assert greetings.answered("c:3") is True
    assert greetings.answered("b:2") is True
    assert greetings.answered("a:1") is None
