"""Counts unintended synchronisations on the token path: where the model thread waits for the device.

    with audit.watching():      # around a step, on the model thread
        …                       # whatever there makes the host wait is counted, by the line that did

On CUDA (and an NPU) torch says so itself: in its synchronisation debug mode every call that waits as a side effect
(`tolist`, `item`, `cpu`, a copy without `non_blocking`, a boolean index) raises a Python warning with the line it comes
from. vLLM's own `VLLM_GPU_SYNC_CHECK` uses the same mode, but passes over what vLLM allows itself, its copy of the
sampled tokens included. An event that is waited for is no such call: those waits are meant, and `TokenTransfer` counts
them. On the fake asynchronous device the calls themselves tell (`note`). On a CPU there is nothing to wait for.
"""

import threading
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import torch

from baton.model_runner.channel import AUDIT_VARIABLE

_WARNING: Final = "called a synchronizing"  # torch's and torch_npu's


class SyncAudit:
    """Counts what it is told of while a thread is watched; by itself it is told of nothing."""

    def __init__(self) -> None:
        self._sites: Counter[str] = Counter()
        self._watched = threading.local()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Count this thread's waits."""
        before = getattr(self._watched, "depth", 0)
        self._watched.depth = before + 1
        try:
            yield
        finally:
            self._watched.depth = before

    def note(self, site: str) -> None:
        if getattr(self._watched, "depth", 0):
            self._sites[site] += 1

    def snapshot(self) -> dict[str, int]:
        return dict(self._sites)  # by line

    def stop(self) -> None:
        """Give the process back what was replaced for it. Idempotent."""


class TorchAudit(SyncAudit):
    """Counts what torch warns of. One for a process: the mode, and the hook that hears the warnings, are the process's."""

    def __init__(self, module: Any) -> None:
        """`module` is the device's module of torch."""
        super().__init__()
        self._module = module
        self._show = warnings.showwarning
        warnings.filterwarnings("always", message=f".*{_WARNING}.*")
        warnings.showwarning = self._hear  # type: ignore[assignment]  # what is left out is optional
        module.set_sync_debug_mode("warn")

    def stop(self) -> None:
        if warnings.showwarning == self._hear:
            warnings.showwarning = self._show
            self._module.set_sync_debug_mode("default")

    def _hear(self, message: Any, category: Any, filename: str, lineno: int, *rest: Any) -> None:
        if _WARNING in str(message):
            self.note(f"{short(filename)}:{lineno}")
        else:
            self._show(message, category, filename, lineno, *rest)


def make_audit(device: torch.device, environ: Mapping[str, str]) -> SyncAudit:
    """Return what the environment asks for, as far as the device can tell."""
    if environ.get(AUDIT_VARIABLE) != "1" or device.type == "cpu":
        return SyncAudit()
    return TorchAudit(torch.get_device_module(device))


def short(filename: str) -> str:
    """Return a path from its package on."""
    _, found, rest = filename.rpartition("site-packages/")
    return rest if found else filename
