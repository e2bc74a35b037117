"""Processes of one engine that wait for each other leave the cores to others."""

import sys
import time
from types import SimpleNamespace

import pytest

from baton.kv_connector.vllm_compat import busy_wait


def test_a_reader_sleeps_between_two_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its way to give up the processor is replaced, wherever it is called from."""
    spins = SimpleNamespace(sched_yield=lambda: pytest.fail("it spins"))
    slept: list[float] = []
    monkeypatch.setitem(sys.modules, busy_wait.MODULE, spins)
    monkeypatch.setattr(busy_wait, "_theirs", {})
    monkeypatch.setattr(time, "sleep", slept.append)

    busy_wait.pause_instead()
    busy_wait.pause_instead()
    spins.sched_yield()

    assert slept == [busy_wait.PAUSE_S]


def test_vllm_gets_its_own_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """When the connector stops, once, however often it was replaced."""
    theirs = object()
    spins = SimpleNamespace(sched_yield=theirs)
    monkeypatch.setitem(sys.modules, busy_wait.MODULE, spins)
    monkeypatch.setattr(busy_wait, "_theirs", {})

    busy_wait.pause_instead()
    busy_wait.pause_instead()
    busy_wait.spin_again()
    assert spins.sched_yield is theirs
    busy_wait.spin_again()
    assert spins.sched_yield is theirs


def test_a_version_that_waits_otherwise_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is said, since on few cores it matters."""
    monkeypatch.setitem(sys.modules, busy_wait.MODULE, SimpleNamespace())

    busy_wait.pause_instead()

    assert "keep the cores busy" in caplog.text


def test_the_engine_has_what_is_replaced() -> None:
    """This version of vLLM calls it by that name."""
    from vllm.distributed.device_communicators import shm_broadcast

    assert callable(shm_broadcast.sched_yield)
