"""Brings the tensors of each step to the host, while the model goes on.

    model thread   submit: take a slot, pack, one copy, record the slot's event ── next step …
    taker          sleep for the event ─ copy out of the slot ─ free it ─ resolve the handle
    reader         handle.result(): waits for that step and nothing else

The taker waits for the oldest step first, as the copy stream runs them. Of a device that hangs the step watchdog makes
an end; of one that fails, everyone who waits hears at once.
"""

import logging
import threading
import time
from collections import deque
from typing import Any, Final, NamedTuple

import torch

from baton.kv_connector.telemetry.histogram import Histogram
from baton.model_runner.tokens.handles import DeviceLostError, Handle, Tensors, TokenTransferError
from baton.model_runner.tokens.lanes import LaneEvent, StreamLane
from baton.model_runner.tokens.packing import Packing, pack
from baton.model_runner.tokens.slots import SLOTS, Ring, Slot, part_of

logger = logging.getLogger(__name__)

SECONDS: Final = (0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0)
_STOP_S = 5.0


class Counts:
    """Times and totals of one transfer, read by any thread, for the node's `/metrics`.

    Two readers that end their waits at the same instant may count as one.
    """

    def __init__(self) -> None:
        self.to_host_s = Histogram(SECONDS)  # from submit to tokens on the host
        self.wait_s = Histogram(SECONDS)  # how long readers waited, those that did not have to included
        self.submitted = 0
        self.slot_waits = 0  # submits that found no free slot
        self.grown = 0  # slots that had to be enlarged
        self.slots_in_use_max = 0

    def snapshot(self) -> dict[str, Any]:
        return {
            "histograms": {"to_host_s": self.to_host_s.snapshot(), "wait_s": self.wait_s.snapshot()},
            "submitted": self.submitted,
            "slot_waits": self.slot_waits,
            "grown": self.grown,
            "slots_in_use_max": self.slots_in_use_max,
        }


class _Flight(NamedTuple):
    """A step whose copy has been issued."""

    slot: Slot
    packing: Packing
    handle: Handle
    sources: tuple[torch.Tensor, ...]  # the device's memory is not given away before it has been read (vLLM #29623)
    submitted_s: float


class TokenTransfer:
    """See the head of this file. One thread submits."""

    def __init__(self, lane: StreamLane, slot_bytes: int, *, slots: int = SLOTS) -> None:
        """Allocate `slots` slots of `slot_bytes`, one for each step on its way; a step that needs more gets a larger one."""
        self.counts = Counts()
        self._lane = lane
        self._ring = Ring(lane, slot_bytes, slots)
        self._flights: deque[_Flight] = deque()
        self._changed = threading.Condition()
        self._broken: TokenTransferError | None = None
        self._abandoned: list[_Flight] = []  # the device may still read and write what belongs to them
        self._stopping = False
        self._taker = threading.Thread(target=self._take_all, name="token-transfer", daemon=True)

    @property
    def slots(self) -> tuple[int, int]:
        """How many slots are in use, of how many."""
        return self._ring.in_use, self._ring.slots

    def start(self) -> None:
        if not self._taker.is_alive():
            self._taker.start()

    def stop(self) -> None:
        """End the taker; what is on its way comes to nothing. Idempotent, and bounded even if the device hangs."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self._break(TokenTransferError("the runner has stopped"))
        if self._taker.is_alive():
            self._taker.join(_STOP_S)

    def submit(self, tensors: Tensors) -> Handle:
        """Send a step's tensors; wait only if every slot is in use. Raises `TokenTransferError`: an earlier step was lost."""
        if self._broken is not None:
            raise self._broken
        packing = pack(tensor.numel() * tensor.element_size() for tensor in tensors.values())
        self.counts.slot_waits += self._ring.in_use == self._ring.slots
        slot = self._ring.acquire()
        self.counts.submitted += 1
        self.counts.slots_in_use_max = max(self.counts.slots_in_use_max, self._ring.in_use)
        submitted_s = time.perf_counter()
        self.counts.grown += slot.grow(packing.size_bytes)
        empty = {name: torch.empty(t.shape, dtype=t.dtype, device="cpu") for name, t in tensors.items()}
        handle = Handle(empty, self.counts.wait_s.observe)
        sources = tuple(tensors.values())
        with self._lane.issuing():
            self._issue(slot, packing, sources)
            self._lane.record(slot.event)
        self._add(_Flight(slot, packing, handle, sources, submitted_s))
        return handle

    def take(self) -> bool:
        """Wait for the oldest step's copy and resolve its handle; return False if there is none. The taker's work."""
        with self._changed:
            if not self._flights:
                return False
            flight = self._flights[0]
        try:
            flight.slot.event.synchronize()
            if not self._remove(flight):
                return False  # the runner has stopped
            self._copy_out(flight)
        except Exception as exc:  # noqa: BLE001  # thread boundary: whatever it is, readers must get it
            flight.handle.resolve(self._lose(exc))
            return False
        self._ring.release(flight.slot)
        self.counts.to_host_s.observe(time.perf_counter() - flight.submitted_s)
        flight.handle.resolve()
        return True

    def event(self) -> LaneEvent:
        return self._lane.event()  # for another waiter on this device

    # --- inside ---

    def _issue(self, slot: Slot, packing: Packing, sources: tuple[torch.Tensor, ...]) -> None:
        """Issue one copy to the host, of the one tensor or of all of them packed."""
        if len(sources) == 1 and sources[0].is_contiguous():
            self._lane.copy(part_of(slot.host, 0, sources[0]), sources[0])
            return
        for offset_bytes, source in zip(packing.offsets_bytes, sources, strict=True):
            self._lane.copy(part_of(slot.device, offset_bytes, source), source)
        self._lane.copy(slot.host[: packing.size_bytes], slot.device[: packing.size_bytes])

    def _add(self, flight: _Flight) -> None:
        with self._changed:
            self._flights.append(flight)
            self._changed.notify_all()
            broken = self._broken
        if broken is not None:
            flight.handle.resolve(broken)

    def _remove(self, flight: _Flight) -> bool:
        with self._changed:
            is_oldest = bool(self._flights) and self._flights[0] is flight
            if is_oldest:
                self._flights.popleft()
            return is_oldest

    @staticmethod
    @torch.inference_mode()  # as vLLM's model thread, which has made the tensors; the mode is a thread's own
    def _copy_out(flight: _Flight) -> None:
        for offset_bytes, tensor in zip(flight.packing.offsets_bytes, flight.handle.tensors.values(), strict=True):
            tensor.copy_(part_of(flight.slot.host, offset_bytes, tensor))

    def _lose(self, cause: Exception) -> TokenTransferError:
        """Something failed on the taker's side: no tokens come any more."""
        lost = DeviceLostError(f"the device failed before a step's tokens came: {cause}")
        lost.__cause__ = cause
        self._break(lost)
        return lost

    def _break(self, error: TokenTransferError) -> None:
        """Let every reader, and every later step, have this error. Slots in flight are never used again."""
        with self._changed:
            if self._broken is None:
                self._broken = error
                self._ring.close(error)
            flights = list(self._flights)
            self._abandoned += flights
            self._flights.clear()
        for flight in flights:
            flight.handle.resolve(error)

    def _take_all(self) -> None:
        try:
            self._lane.adopt_thread()
        except Exception as exc:  # noqa: BLE001  # thread boundary: without a taker no thread may wait for it
            self._lose(exc)
            return
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._flights or self._stopping)
                if self._stopping:
                    return
            self.take()


class Arrived:
    """A handle whose tensors are there."""

    def __init__(self, tensors: Tensors) -> None:
        self.tensors = tensors

    def result(self) -> Tensors:
        return self.tensors

    def synchronize(self) -> None:
        """Return at once: the tensors are there."""


class HostTransfer:
    """The same where the model computes on the host: nothing is late, so there is neither slot nor thread."""

    slots = (0, 0)

    def __init__(self) -> None:
        self.counts = Counts()

    def start(self) -> None:
        """There is no thread to start."""

    def stop(self) -> None:
        """There is no thread to stop."""

    def submit(self, tensors: Tensors) -> Arrived:
        """Copy a step's tensors: they are the reader's, whatever the model does with its own."""
        submitted_s = time.perf_counter()
        handle = Arrived({name: tensor.clone() for name, tensor in tensors.items()})
        self.counts.submitted += 1
        self.counts.to_host_s.observe(time.perf_counter() - submitted_s)
        return handle


Transfer = TokenTransfer | HostTransfer


def transfer_for(device: torch.device, slot_bytes: int) -> Transfer:
    if device.type == "cpu":
        return HostTransfer()
    return TokenTransfer(StreamLane(device), slot_bytes)
