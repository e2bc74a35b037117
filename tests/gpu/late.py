"""The simulated device of the dry runs: `LateDevice`, by default on a virtual clock, with the methods of `Device`.

Its tensors lie in the host's memory; kernels write them late, in the order that the device's streams allow. On the virtual
clock times are arithmetic, so expectations of time are judged as well; on the machine's clock they are not.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import ModuleType
from typing import Any
from unittest.mock import patch

import torch

from baton.model_runner.tokens.lanes import StreamLane
from tests.gpu.device import Device
from tests.support.late_device import LateDevice, LateTorch
from tests.support.virtual_host import RealHost, VirtualHost

COPY_BYTES_PER_S = 25e9


class LateAccelerator(Device):
    """See the head of this file. Use it through `late`."""

    late = True

    def __init__(self, host: VirtualHost | RealHost) -> None:
        self.timed = isinstance(host, VirtualHost)
        self.itself = torch.device("cuda", 0)
        self.memory = torch.device("cpu")
        self.device = LateDevice(host, copy_bytes_per_s=COPY_BYTES_PER_S)
        self.module = LateTorch(host, [self.device])
        self._host = host

    def describe(self) -> str:
        return "simulated"

    def now(self) -> float:
        return self._host.now()

    def sleep(self, seconds: float) -> None:
        until = self.now() + seconds
        while self.now() < until:
            self._host.wait(None, until)

    def thread(self, target: Callable[[], object], name: str) -> Any:
        if isinstance(self._host, VirtualHost):
            return self._host.thread(target, name)
        return super().thread(target, name)

    def mark(self) -> Any:
        return self.module.current_stream().record_event()

    def restart_clock(self) -> None:
        """There is one clock."""

    def instants(self, marks: Sequence[Any]) -> list[float]:
        return [mark.done_at for mark in marks]

    def launch(self, kernel: Callable[[], object], cost_s: float = 0.0) -> None:
        def run() -> None:  # in the thread that happens to look at the device
            if torch.get_num_threads() > 1:  # threads that wait for tiny work to divide would spin
                torch.set_num_threads(1)
            kernel()

        self.module.current_stream().launch(run, cost_s=cost_s)

    def spin(self, seconds: float) -> None:
        self.module.current_stream().launch(cost_s=seconds)

    def capture(self, kernel: Callable[[], object], cost_s: float = 0.0) -> Callable[[], None]:
        return lambda: self.launch(kernel, cost_s)

    def pinned(self, size_bytes: int) -> torch.Tensor:
        return torch.empty(size_bytes, dtype=torch.uint8)

    def copy_out(self, target: torch.Tensor, source: torch.Tensor) -> None:
        self.module.current_stream().copy(target.nbytes, "to host", lambda: target.copy_(source))

    def copy_in(self, target: torch.Tensor, source: torch.Tensor) -> None:
        self.module.current_stream().copy(target.nbytes, "to device", lambda: target.copy_(source))

    def copy_to_host(self, target: torch.Tensor, source: torch.Tensor) -> None:
        self.device.copy_and_wait(target.nbytes, "to host", lambda: target.copy_(source))

    def copy_to_device(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """See `Device`: it returns when the bytes are staged."""
        staged = source.clone()
        self.legacy.synchronize()
        self.legacy.copy(target.nbytes, "to device", lambda: target.copy_(staged))

    def lane(self) -> StreamLane:
        return _LateLane(self)

    def to_list(self, tensor: torch.Tensor) -> list[Any]:
        self.module.current_stream().synchronize()
        return super().to_list(tensor)

    def allocated(self) -> int:
        return 0


class _LateLane(StreamLane):
    """The product's lane, with memory and copies of the simulated device."""

    def __init__(self, device: LateAccelerator) -> None:
        super().__init__(device.itself)
        self._late = device

    def host_memory(self, size_bytes: int) -> torch.Tensor:
        return self._late.pinned(size_bytes)

    def device_memory(self, size_bytes: int) -> torch.Tensor:
        return self._late.pinned(size_bytes)

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        self._late.copy_out(target, source)


@contextmanager
def late(*driven: ModuleType, virtual: bool = True) -> Iterator[LateAccelerator]:
    """Give a simulated device, which torch's device-neutral names mean while the context is open.

    Args:
        driven: Modules whose threads, queues and clocks shall be the virtual host's.
        virtual: Time passes by arithmetic; else by the machine's clock.
    """
    with ExitStack() as stack:
        stack.callback(torch.set_num_threads, torch.get_num_threads())
        host: VirtualHost | RealHost = RealHost()
        if virtual:
            host = stack.enter_context(VirtualHost(wake_s=50e-6))
            stack.enter_context(host.driving(*driven))
        device = LateAccelerator(host)
        stack.enter_context(patch.object(torch, "get_device_module", lambda *_: device.module))
        yield device
