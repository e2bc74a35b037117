"""The ring of slots: host memory, memory on the device to pack into, and an event for each.

    free ── acquire ──► in flight ── release ──► free
                (device copies into it)  (it has been copied out)

A slot is in one of two states, and only `release` makes it free: not the end of the copy, and not the next step.
"""

import threading
from collections import deque

import torch

from baton.model_runner.tokens.handles import TokenTransferError
from baton.model_runner.tokens.lanes import StreamLane

SLOTS = 4  # vLLM keeps two batches under way under asynchronous scheduling


class Slot:
    """Memory of one step's tokens."""

    def __init__(self, lane: StreamLane, size_bytes: int) -> None:
        self._lane = lane
        self.event = lane.event()
        self.host = lane.host_memory(size_bytes)
        self.device = lane.device_memory(size_bytes)

    def grow(self, size_bytes: int) -> bool:
        """Have room for so much; return whether new memory was needed. Only while no other step is in it."""
        if size_bytes <= self.host.numel():
            return False
        size_bytes = 1 << (size_bytes - 1).bit_length()
        self.host = self._lane.host_memory(size_bytes)
        self.device = self._lane.device_memory(size_bytes)
        return True


class Ring:
    """Hands out slots, the one that has been free longest first. Any thread."""

    def __init__(self, lane: StreamLane, size_bytes: int, slots: int = SLOTS) -> None:
        self.slots = slots
        self._free = deque(Slot(lane, size_bytes) for _ in range(slots))
        self._changed = threading.Condition()
        self._closed: TokenTransferError | None = None

    @property
    def in_use(self) -> int:
        return self.slots - len(self._free)

    def acquire(self) -> Slot:
        """Return a free slot, and wait for one if there is none. Raises what the ring was closed with."""
        with self._changed:
            self._changed.wait_for(lambda: self._free or self._closed)
            if self._closed is not None:
                raise self._closed
            return self._free.popleft()

    def release(self, slot: Slot) -> None:
        with self._changed:
            self._free.append(slot)
            self._changed.notify()

    def close(self, error: TokenTransferError) -> None:
        """Give out no slot any more; a thread that waits for one gets this error, and at once."""
        with self._changed:
            self._closed = error
            self._changed.notify_all()


def part_of(memory: torch.Tensor, offset_bytes: int, like: torch.Tensor) -> torch.Tensor:
    """View a part of a slot's bytes as a tensor of this shape and dtype."""
    size_bytes = like.numel() * like.element_size()
    return memory[offset_bytes : offset_bytes + size_bytes].view(like.dtype).view(like.shape)
