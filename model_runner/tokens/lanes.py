"""A device's copy stream: the only file here that talks to a device.

A lane issues copies that begin when the model's stream has got as far as it is now, and that run beside what the model
does next. Waiting for an event of a lane sleeps; it waits for that lane and for nothing else on the device.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch


class LaneEvent(Protocol):
    """A point on a lane, as the device's own event class has it."""

    def record(self, stream: Any) -> None:
        """Stand for what has been issued to a stream of the device."""

    def query(self) -> bool:
        """Whether it has been passed; at once. One that was never recorded has. Raises what the device's error is."""

    def synchronize(self) -> None:
        """Sleep until it has been passed; without a bound. Raises what the device's error is."""


class StreamLane:
    """A stream of a CUDA, ROCm or NPU device, through the device's own torch module.

    Not `torch.Event`: on CUDA it ignores `blocking`, and its waiter spins (vLLM #47081).
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._module: Any = torch.get_device_module(device)
        self._stream: Any = self._module.Stream(device=device)

    def host_memory(self, size_bytes: int) -> torch.Tensor:
        """Allocate pinned bytes: no other memory is written while the host goes on."""
        return torch.empty(size_bytes, dtype=torch.uint8, pin_memory=True)

    def device_memory(self, size_bytes: int) -> torch.Tensor:
        return torch.empty(size_bytes, dtype=torch.uint8, device=self._device)

    def event(self) -> LaneEvent:
        made: LaneEvent = self._module.Event(blocking=True)  # its waiter sleeps
        return made

    def adopt_thread(self) -> None:
        """Let the calling thread wait for events. On CUDA it would otherwise open a context on device 0."""
        self._module.set_device(self._device)

    @contextmanager
    def issuing(self) -> Iterator[None]:
        """Issue what follows to the lane, behind what has been issued to the model's stream."""
        self._stream.wait_stream(self._module.current_stream(self._device))
        with self._module.stream(self._stream):
            yield

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        target.copy_(source, non_blocking=True)

    def record(self, event: LaneEvent) -> None:
        event.record(self._stream)
