"""Brings the tensors of each step to the host, while the model goes on.

    model thread   submit: take a slot, pack, one copy, record the slot's event ── next step …
    taker          sleep for the event ─ copy out of the slot ─ free it ─ resolve the handle
    reader         handle.result(): waits for that step and nothing else, and no longer than it may

The taker waits for the oldest step first, as the copy stream runs them. It alone waits for the device, without a bound,
since no device offers one; everybody else waits for the taker, with one.
"""

import logging
import threading
import time
from collections import deque
from typing import NamedTuple

import torch

from baton.model_runner.tokens.counts import Counts
from baton.model_runner.tokens.errors import DeviceLostError, TokenTimeoutError, TokenTransferError
from baton.model_runner.tokens.handles import EVENT, BoundedEvent, EventWatch, Handle, Tensors
from baton.model_runner.tokens.lanes import Lane, LaneEvent
from baton.model_runner.tokens.packing import Packing, Sizes, pack
from baton.model_runner.tokens.slots import SLOTS, Ring, Slot, part_of

logger = logging.getLogger(__name__)

_STOP_S = 5.0


class _Flight(NamedTuple):
    """A step whose copy has been issued."""

    slot: Slot
    packing: Packing
    handle: Handle
    sources: tuple[torch.Tensor, ...]  # the device's memory is not given away before it has been read (vLLM #29623)
    submitted_s: float


class TokenTransfer:
    """See the head of this file. One thread submits."""

    def __init__(self, lane: Lane, sizes: Sizes, *, timeout_s: float, slots: int = SLOTS) -> None:
        """Allocate everything that a step needs.

        Args:
            lane: Of the device that the tensors lie on.
            sizes: What a step brings at most.
            timeout_s: How long one wait may take, for a slot or for tokens.
            slots: How many steps may be on their way.
        """
        self.counts = Counts()
        self._lane = lane
        self._timeout_s = timeout_s
        self._ring = Ring(lane, sizes.slot_bytes, slots)
        self._flights: deque[_Flight] = deque()
        self._changed = threading.Condition()
        self._broken: TokenTransferError | None = None
        self._abandoned: list[_Flight] = []  # the device may still read and write what belongs to them
        self._stopping = False
        self._taker = threading.Thread(target=self._take_all, name="token-transfer", daemon=True)
        self._watch = EventWatch(lane.adopt_thread, self._lose)
        self._awaited: Handle | None = None  # of the event that the model thread waits for

    @property
    def slots(self) -> tuple[int, int]:
        """How many slots are in use, of how many."""
        return self._ring.in_use, self._ring.slots

    def start(self) -> None:
        """Start the taker; idempotent."""
        if not self._taker.is_alive():
            self._taker.start()

    def stop(self) -> None:
        """End the taker; what is on its way comes to nothing. Idempotent, and bounded even if the device hangs."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self._break(TokenTransferError("the runner has stopped"))
        self._watch.stop()
        if self._taker.is_alive():
            self._taker.join(_STOP_S)

    def submit(self, tensors: Tensors) -> Handle:
        """Send a step's tensors on their way; waits only if every slot is in use.

        Raises:
            TokenTransferError: an earlier step was lost, or no slot became free in time.
        """
        if self._broken is not None:
            raise self._broken
        packing = pack(tensor.numel() * tensor.element_size() for tensor in tensors.values())
        self.counts.slot_waits += self._ring.in_use == self._ring.slots
        slot = self._ring.acquire(self._timeout_s)
        self.counts.submitted += 1
        self.counts.slots_in_use_max = max(self.counts.slots_in_use_max, self._ring.in_use)
        submitted_s = time.perf_counter()
        self.counts.grown += slot.grow(packing.size_bytes)
        empty = {name: torch.empty(t.shape, dtype=t.dtype, device="cpu") for name, t in tensors.items()}
        handle = Handle(empty, self._timeout_s, self.counts.wait_s.observe, self._give_up)
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
                return False  # given up meanwhile
            self._copy_out(flight)
        except Exception as exc:  # noqa: BLE001  # thread boundary: whatever it is, readers must get it
            flight.handle.resolve(self._lose(exc))
            return False
        self._ring.release(flight.slot)
        self.counts.to_host_s.observe(time.perf_counter() - flight.submitted_s)
        flight.handle.resolve()
        return True

    def event(self) -> BoundedEvent:
        """Make an event for whoever else waits on this device: he sleeps, and no longer than a reader of tokens."""
        return BoundedEvent(self._lane.event(), self._wait_for)

    # --- inside ---

    def _wait_for(self, event: LaneEvent) -> None:
        """Return at once if the device has passed the event, as is usual; else wait for who waits for it. One thread."""
        try:
            if event.query():
                return
        except Exception as exc:  # whatever the device's error class is
            raise self._lose(exc) from exc
        handle = Handle({}, self._timeout_s, self.counts.wait_s.observe, self._give_up, EVENT)
        with self._changed:
            if self._broken is not None:
                raise self._broken
            self._awaited = handle
        self._watch.watch(event, handle)
        handle.synchronize()

    def _issue(self, slot: Slot, packing: Packing, sources: tuple[torch.Tensor, ...]) -> None:
        """Issue one copy to the host, of the one tensor or of all of them packed."""
        if len(sources) == 1 and sources[0].is_contiguous():
            self._lane.copy(part_of(slot.host, 0, sources[0]), sources[0])
            return
        for extent, source in zip(packing.extents, sources, strict=True):
            self._lane.copy(part_of(slot.device, extent.offset_bytes, source), source)
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
        for extent, tensor in zip(flight.packing.extents, flight.handle.tensors.values(), strict=True):
            tensor.copy_(part_of(flight.slot.host, extent.offset_bytes, tensor))

    def _lose(self, cause: Exception) -> TokenTransferError:
        """Something failed on the taker's side: no tokens come any more."""
        lost = DeviceLostError(f"the device failed before a step's tokens came: {cause}")
        lost.__cause__ = cause
        self._break(lost)
        return lost

    def _give_up(self, why: str) -> TokenTransferError:
        """A reader has waited long enough: nothing more is sent to a device that does not answer."""
        error = TokenTimeoutError(why)
        self._break(error)
        return error

    def _break(self, error: TokenTransferError) -> None:
        """Let every reader, and every later step, have this error. Slots in flight are never used again."""
        with self._changed:
            if self._broken is None:
                self._broken = error
                self._ring.close(error)
            flights = list(self._flights)
            self._abandoned += flights
            self._flights.clear()
            awaited, self._awaited = self._awaited, None
        for handle in [flight.handle for flight in flights] + ([awaited] if awaited is not None else []):
            handle.resolve(error)

    def _take_all(self) -> None:
        try:
            self._lane.adopt_thread()
        except Exception as exc:  # noqa: BLE001  # thread boundary: without a taker nobody may wait for it
            self._lose(exc)
            return
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._flights or self._stopping)
                if self._stopping:
                    return
            self.take()
