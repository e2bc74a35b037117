"""Processes of one engine that wait for each other leave the cores to others."""

import sys
import time
from types import SimpleNamespace

import pytest

from baton.kv_connector.vllm_compat import busy_wait


def test_a_reader_sleeps_between_two_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its way to give up the processor is replaced, until the connector stops; either may be said more than once."""
    theirs = object()
    spins = SimpleNamespace(sched_yield=theirs)
    slept: list[float] = []
    monkeypatch.setitem(sys.modules, busy_wait.MODULE, spins)
    monkeypatch.setattr(busy_wait, "_theirs", {})
    monkeypatch.setattr(time, "sleep", slept.append)

    busy_wait.pause_instead()
    busy_wait.pause_instead()
    spins.sched_yield()
    assert slept == [busy_wait.PAUSE_S]

    for _ in range(2):
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
