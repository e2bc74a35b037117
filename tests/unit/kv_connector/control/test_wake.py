"""The engine's pause between steps, and the word that ends it."""

import inspect
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from vllm.v1.engine import core as engine_core

from baton.kv_connector.control.wake import ENGINE_CORE, IdleSleep, Waker, wake_path
from baton.kv_connector.errors import ConnectorError

LONG_S = 0.009  # near the longest sleep that can be ended
NEVER_S = 5.0


@pytest.fixture
def pause(tmp_path: Path) -> Iterator[IdleSleep]:
    made = IdleSleep(wake_path(tmp_path))
    made.start()
    yield made
    made.stop()


@pytest.fixture
def waker(tmp_path: Path) -> Iterator[Waker]:
    made = Waker(wake_path(tmp_path))
    made.start()
    yield made
    made.stop()


@pytest.fixture
def slept(pause: IdleSleep, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Time-outs that the sleep was begun with, s."""
    real = pause._poll
    timeouts: list[float] = []

    def watched(timeout_ms: float) -> object:
        timeouts.append(timeout_ms / 1000)
        return real.poll(NEVER_S * 1000 if timeout_ms else 0)  # so that only a word can end it in time

    monkeypatch.setattr(pause, "_poll", SimpleNamespace(poll=watched, unregister=real.unregister))
    return timeouts


def test_a_word_ends_the_sleep(pause: IdleSleep, waker: Waker, slept: list[float]) -> None:
    """The engine does not sleep on when there is news, which this user alone may send."""
    assert pause._path.stat().st_mode & 0o077 == 0
    threading.Timer(0.05, waker.wake).start()
    began = time.monotonic()

    pause.sleep(LONG_S)

    assert slept == [LONG_S]
    assert time.monotonic() - began < NEVER_S


def test_words_before_the_sleep_end_it_once(pause: IdleSleep, waker: Waker, slept: list[float]) -> None:
    """News that came while a step ran is not slept over; all of it is about what the next step takes in."""
    for _ in range(5):
        waker.wake()

    pause.sleep(LONG_S)

    assert slept == [LONG_S]  # and it returned
    assert pause._socket is not None
    with pytest.raises(BlockingIOError):
        pause._socket.recv(1)


def test_a_process_with_many_descriptors_sleeps_and_is_woken(tmp_path: Path) -> None:
    """The engine ended when its socket was the 1024th descriptor or a later one."""
    taken = [os.dup(0) for _ in range(1024)]
    try:
        pause, waker = IdleSleep(wake_path(tmp_path)), Waker(wake_path(tmp_path))
        pause.start()
        assert pause._socket is not None
        assert pause._socket.fileno() >= 1024
        pause.sleep(0.001)
        waker.start()
        waker.wake()
        pause.sleep(LONG_S)
        pause.stop()
        waker.stop()
    finally:
        for descriptor in taken:
            os.close(descriptor)


def test_a_skipped_sleep_does_not_wait(pause: IdleSleep, waker: Waker, slept: list[float]) -> None:
    """The step after the one that took notice follows at once; the one after that sleeps again."""
    pause.skip_next()

    pause.sleep(LONG_S)
    threading.Timer(0.05, waker.wake).start()
    pause.sleep(LONG_S)

    assert slept == [0.0, LONG_S]


def test_a_long_sleep_is_vllms_own(pause: IdleSleep, waker: Waker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the pause between two steps is replaced."""
    asked: list[float] = []
    monkeypatch.setattr("baton.kv_connector.control.wake.time", SimpleNamespace(sleep=asked.append))
    waker.wake()

    pause.sleep(3.0)

    assert asked == [3.0]


def test_vllms_engine_core_sleeps_through_us(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its module's `time.sleep` is ours until `stop`; everything else of `time` is untouched."""
    core = ModuleType(ENGINE_CORE)
    core.time = time  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, ENGINE_CORE, core)

    pause = IdleSleep(wake_path(tmp_path))

    pause.start()

    assert core.time.sleep == pause.sleep
    assert core.time.monotonic is time.monotonic
    pause.stop()
    pause.stop()
    assert core.time is time


def test_vllm_does_sleep_where_we_replace_it() -> None:
    """Fails when a new vLLM sleeps elsewhere or otherwise, so that a developer looks."""
    assert "\nimport time\n" in inspect.getsource(engine_core)  # a scheduler of another test may have it replaced
    assert "time.sleep(0.001)" in inspect.getsource(engine_core.EngineCoreProc._process_engine_step)


def test_without_the_engine_core_nothing_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The engine then looks every millisecond, as without us, and the log says so."""
    monkeypatch.delitem(sys.modules, ENGINE_CORE, raising=False)

    pause = IdleSleep(wake_path(tmp_path))

    pause.start()
    pause.stop()

    assert "looks for news every millisecond" in caplog.text


def test_a_word_that_is_not_read_does_not_block_the_worker(waker: Waker, tmp_path: Path) -> None:
    """The worker starts before the scheduler does, and an engine in a long forward pass reads nothing."""
    waker.wake()
    pause = IdleSleep(wake_path(tmp_path))
    pause.start()
    for _ in range(2_000):
        waker.wake()
    pause.stop()


def test_a_path_that_cannot_be_bound_is_named(tmp_path: Path) -> None:
    """The start fails with a sentence."""
    with pytest.raises(ConnectorError, match="nowhere"):
        IdleSleep(tmp_path / "nowhere" / "wake.sock").start()
