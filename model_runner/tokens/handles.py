"""What a reader waits for: a step's tensors, on their way to the host.

Waits here have no bound of their own: they are made in calls of a step, which the worker's step watchdog bounds.
"""

import threading
import time
from collections.abc import Callable, Mapping

import torch

Tensors = Mapping[str, torch.Tensor]


class TokenTransferError(Exception):
    """A step's tokens did not come."""


class DeviceLostError(TokenTransferError):
    """The device failed; no later step's tokens come either."""


class Handle:
    """The tokens of one step, on their way."""

    def __init__(self, tensors: Tensors, waited: Callable[[float], None]) -> None:
        """The tensors are without meaning until `synchronize` has returned; `waited` is told how many seconds one has waited."""
        self.tensors = tensors
        self._waited = waited
        self._resolved = threading.Event()
        self._error: TokenTransferError | None = None

    def result(self) -> Tensors:
        """Wait, once or often, in any thread. Raises `TokenTransferError`: the device failed, or the runner stopped."""
        self.synchronize()
        return self.tensors

    def synchronize(self) -> None:
        """Wait for them; vLLM asks its events like this."""
        began_s = time.perf_counter()
        self._resolved.wait()
        self._waited(time.perf_counter() - began_s)
        if self._error is not None:
            raise self._error

    def resolve(self, error: TokenTransferError | None = None) -> None:
        """Say that the tensors are there, or why they never will be."""
        self._error = error
        self._resolved.set()
