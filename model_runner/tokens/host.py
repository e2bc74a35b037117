"""The same where the model computes on the host: nothing is late, so there is neither slot nor thread."""

import time

from baton.model_runner.tokens.counts import Counts
from baton.model_runner.tokens.handles import Tensors


class Arrived:
    """A handle whose tensors are there."""

    def __init__(self, tensors: Tensors) -> None:
        self.tensors = tensors

    def result(self) -> Tensors:
        return self.tensors

    def synchronize(self) -> None:
        """Return."""


class HostTransfer:
    """A `TokenTransfer` without a device."""

    slots = (0, 0)

    def __init__(self) -> None:
        self.counts = Counts()

    def start(self) -> None:
        """Nothing is to be started."""

    def stop(self) -> None:
        """Nor stopped."""

    def submit(self, tensors: Tensors) -> Arrived:
        """Copy a step's tensors: they are the reader's, whatever the model does with its own."""
        submitted_s = time.perf_counter()
        handle = Arrived({name: tensor.clone() for name, tensor in tensors.items()})
        self.counts.submitted += 1
        self.counts.to_host_s.observe(time.perf_counter() - submitted_s)
        return handle
