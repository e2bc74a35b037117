"""Token copies on the fake device: a lane over `FakeDevice`, with the traps of a real one.

- A copy reads its source when it runs. If no tensor holds the source's memory by then, another has been given it: the
  copy brings garbage.
- A copy that casts blocks the host until its stream has come so far, as on an NPU (vllm-ascend #10205).
- `blocking_tolist` goes through pageable memory, and there is one engine for such copies on the device: it comes behind what
  every other stream has been given (vLLM #22754).
"""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from baton.model_runner.tokens.lanes import LaneEvent, StreamLane
from tests.support.fake_device import Event, FakeDevice, Stream

GARBAGE = 0x5A  # of memory that belongs to another tensor


class FakeLane(StreamLane):
    """See the head of this file."""

    def __init__(self, device: FakeDevice, compute: Stream) -> None:
        self.device = device
        self.compute = compute
        self.stream = device.stream()
        self.copies_to_host = 0
        self._on_device: set[int] = set()  # addresses of memory to pack into

    def host_memory(self, size_bytes: int) -> torch.Tensor:
        return torch.zeros(size_bytes, dtype=torch.uint8)

    def device_memory(self, size_bytes: int) -> torch.Tensor:
        memory = torch.zeros(size_bytes, dtype=torch.uint8)
        self._on_device.add(memory.untyped_storage().data_ptr())
        return memory

    def event(self) -> Event:
        return QueuedEvent(self.device, self.compute)

    def adopt_thread(self) -> None:
        pass

    @contextmanager
    def issuing(self) -> Iterator[None]:
        self.compute.record_event().wait(self.stream)
        yield

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        self.copies_to_host += target.untyped_storage().data_ptr() not in self._on_device
        if target.dtype != source.dtype:
            self.stream.synchronize()
            target.copy_(source)
            return
        if not source.is_contiguous():
            self.stream.launch(lambda: _assign(target, source))
            return
        size_bytes, address = source.numel() * source.element_size(), source.data_ptr()
        memory = StorageWeakRef(source.untyped_storage())  # type: ignore[no-untyped-call]

        def run() -> None:
            if memory.expired():  # type: ignore[no-untyped-call]
                ctypes.memset(target.data_ptr(), GARBAGE, size_bytes)
            else:
                ctypes.memmove(target.data_ptr(), address, size_bytes)

        self.stream.launch(run)

    def record(self, event: LaneEvent) -> None:
        event.record(self.stream)


class QueuedEvent(Event):
    """One that stands for the model's stream unless it is told another, as that is current."""

    def __init__(self, device: FakeDevice, current: Stream) -> None:
        super().__init__(device)
        self._current = current

    def record(self, stream: Stream | None = None) -> None:
        super().record(stream or self._current)


@torch.inference_mode()
def _assign(target: torch.Tensor, source: torch.Tensor) -> None:
    target.copy_(source)


def sampled(compute: Stream, *values: int, dtype: torch.dtype = torch.int32, columns: int = 1) -> torch.Tensor:
    """Return a tensor that the model's stream fills late."""
    device_tensor = torch.zeros(len(values) // columns, columns, dtype=dtype)
    real = torch.tensor(values, dtype=dtype).view(device_tensor.shape)
    compute.launch(lambda: _assign(device_tensor, real))
    return device_tensor


def blocking_tolist(device: FakeDevice, tensor: torch.Tensor) -> list[list[int]]:
    device.synchronize()
    found: list[list[int]] = tensor.tolist()
    return found
