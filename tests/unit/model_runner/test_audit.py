"""Counting unintended waits."""

import threading
import warnings
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch

from baton.model_runner.audit import SyncAudit, TorchAudit, make_audit
from baton.model_runner.channel import AUDIT_VARIABLE

WARNING = "called a synchronizing CUDA operation (Triggered internally at CUDAFunctions.cpp:80.)"
ON = {AUDIT_VARIABLE: "1"}


@pytest.fixture
def warning_machinery() -> Iterator[None]:
    """Python's, as it was before the test."""
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        yield


def test_only_what_is_watched_counts() -> None:
    """By line, nested watches included; a wait outside of a step is not counted."""
    audit = SyncAudit()

    audit.note("a.py:1")
    with audit.watching():
        audit.note("a.py:1")
        with audit.watching():
            audit.note("a.py:2")
        audit.note("a.py:1")
    audit.note("a.py:2")

    assert audit.snapshot() == {"a.py:1": 2, "a.py:2": 1}


def test_other_threads_may_wait() -> None:
    """The taker's waits are meant."""
    audit = SyncAudit()
    other = threading.Thread(target=audit.note, args=("taker.py:1",))

    with audit.watching():
        other.start()
        other.join()

    assert audit.snapshot() == {}


@pytest.mark.usefixtures("warning_machinery")
def test_what_torch_warns_of_is_counted() -> None:
    """Each time, by the line that did it; torch is asked to warn, and other warnings are shown as ever."""
    modes: list[str] = []
    shown: list[str] = []
    warnings.showwarning = lambda message, *_, **__: shown.append(str(message))
    audit = TorchAudit(SimpleNamespace(set_sync_debug_mode=modes.append))

    with audit.watching():
        for _ in range(2):
            warnings.warn_explicit(WARNING, UserWarning, "/x/site-packages/vllm/v1/outputs.py", 110)
        warnings.warn_explicit("something else", RuntimeWarning, "a.py", 1)
    warnings.warn_explicit(WARNING, UserWarning, "/x/site-packages/vllm/v1/outputs.py", 111)

    assert modes == ["warn"]
    assert audit.snapshot() == {"vllm/v1/outputs.py:110": 2}
    assert shown == ["something else"]


@pytest.mark.usefixtures("warning_machinery")
def test_the_process_gets_back_what_was_replaced() -> None:
    """Once: what other code has put there since then stays."""
    modes: list[str] = []
    before = warnings.showwarning
    audit = TorchAudit(SimpleNamespace(set_sync_debug_mode=modes.append))

    audit.stop()
    audit.stop()

    assert warnings.showwarning is before
    assert modes == ["warn", "default"]


@pytest.mark.parametrize(("device", "environ"), [("cuda", {}), ("cuda", {AUDIT_VARIABLE: "0"}), ("cpu", ON)])
def test_nothing_is_armed_unless_it_is_asked_for_and_can_tell(device: str, environ: dict[str, str]) -> None:
    """The mode costs something; on a CPU nothing waits."""
    audit = make_audit(torch.device(device), environ)

    assert type(audit) is SyncAudit
    with audit.watching():
        pass
    assert audit.snapshot() == {}


@pytest.mark.usefixtures("warning_machinery")
def test_a_device_is_audited_when_that_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Through its own module of torch."""
    monkeypatch.setattr(torch, "get_device_module", lambda _: SimpleNamespace(set_sync_debug_mode=lambda _: None))

    assert isinstance(make_audit(torch.device("cuda"), ON), TorchAudit)
