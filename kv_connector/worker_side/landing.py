"""Holds back what a decode rank may say until the device has everything that its receiving engine acknowledged.

Mooncake's TCP copies what it receives to a GPU with `cudaMemcpy` from pageable memory, on the legacy default stream.
That may return, and the write be acknowledged, while the last bytes are still on their way to the device, and no other
stream waits for them. So between an acknowledgement or a fence and what may touch the blocks next lies an event there:

    COMMIT ────────────────┐
    COMMIT with digests ───┼── an event on the default stream ──► KV used (I4), digests computed,
    FAIL(clean), fence ────┘                                      blocks given back to the pool (I3)

What needs no device, such as a request that failed and recomputes in other blocks, is said at once.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from baton.kv_connector.handoff.incoming import ConsumerTransfer, Resolved
from baton.kv_connector.worker_side.digesting import Part
from baton.kv_connector.worker_side.sync import DeviceEvent
from baton.kv_connector.worker_side.waiter import FAILED, DeviceWaiter

if TYPE_CHECKING:
    import torch

DEVICE_FAILED = "the decode node's device failed before it had what was received"


class Arrived(NamedTuple):
    """What the state machine has concluded from acknowledgements and fences."""

    to_verify: list[tuple[ConsumerTransfer, list[Part]]]  # with what is to be digested
    resolved: list[Resolved]  # with their KV
    closed: list[str]  # requests whose blocks may be given back

    def __bool__(self) -> bool:
        return any(self)


@dataclass(slots=True, eq=False)
class _Held:
    arrived: Arrived
    given_back: bool = False


class Landing(DeviceWaiter[_Held]):
    """Gives back what arrived, in its order, when the device has it. One thread waits, no other does."""

    def __init__(
        self,
        device: DeviceEvent,
        *,
        landed: Callable[[Arrived], None],
        lost: Callable[[Arrived, str], None],
        enter_device: Callable[[], None],
        patience_s: float,
    ) -> None:
        """Make it; the thread calls `landed` once for each that was given.

        Or `lost`, with a reason, if the device failed or made no progress for `patience_s`. `device.synchronize`
        returns when the device has everything that has been acknowledged by then.
        """
        super().__init__(
            "baton-landing", enter_device=enter_device, passed=self._release, failed=self._fail, patience_s=patience_s
        )
        self._device = device
        self._landed = landed
        self._lost = lost

    def hold(self, arrived: Arrived) -> None:
        """Give `arrived` back when the device has it (any thread)."""
        self.watch(self._device, _Held(arrived))

    def _release(self, held: _Held, _: float) -> None:
        held.given_back = True  # before the call: if it raises, the same ids must not be reported again as lost
        self._landed(held.arrived)

    def _fail(self, held: _Held, reason: str) -> None:
        if held.given_back:
            return
        held.given_back = True
        self._lost(held.arrived, DEVICE_FAILED)
        if reason != FAILED and held.arrived.closed:
            # Timed out without a failure: the blocks stay until the device has the data.
            self.hold(Arrived([], [], held.arrived.closed))


class DefaultStream:
    """The legacy default stream of a CUDA or ROCm device, as far as it has been used by the time of waiting."""

    def __init__(self, device: "torch.device") -> None:
        import torch

        self._device = device
        self._module: Any = torch.get_device_module(device)

    def synchronize(self) -> None:
        """Sleep until the device has passed an event that is recorded now."""
        event = self._module.Event(blocking=True)
        self._module.default_stream(self._device).record_event(event)
        event.synchronize()


def default_stream(device: "torch.device") -> DeviceEvent | None:
    """Return what tells that a device has what Mooncake copied to it; `None` where a copy has ended when it returns."""
    return DefaultStream(device) if device.type == "cuda" else None
