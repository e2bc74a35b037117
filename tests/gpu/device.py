"""The device under the scripts, through torch's device-neutral names.

Facts of CUDA that the scripts stand on (read, none of them seen here):
- torch's default stream is the legacy one; the streams that torch makes are non-blocking, so neither waits for the other.
- torch hands out 32 streams per device in turn: a script makes few, and keeps them.
- `cudaMemcpy` between pageable memory and the device runs on the legacy stream. To the device it returns when the bytes are
  staged, perhaps before they have arrived; to the host when they have.
"""

import ctypes
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final

import torch

from baton.model_runner.tokens.lanes import StreamLane

_RUNTIMES: Final = ("libcudart.so.13", "libcudart.so.12", "libcudart.so")  # torch has loaded one of them
_ANY_DIRECTION: Final = 4  # cudaMemcpyDefault
_SPIN_CYCLES: Final = 50_000_000  # to find out how fast the device counts


class Device:
    """A CUDA device. `tests.gpu.late` has the same methods on a simulated one."""

    timed = True  # its figures of time mean something
    late = False

    def __init__(self) -> None:
        self.itself = torch.device("cuda", 0)
        self.memory = self.itself  # where its tensors lie
        self.module: Any = torch.get_device_module(self.itself)
        self.enter()
        self._memcpy = _find_memcpy()
        self._cycles_per_s = self._count_cycles()
        self._origin: tuple[Any, float] = self._find_origin()

    def describe(self) -> str:
        return f"{self.module.get_device_name(self.itself)}, torch for CUDA {torch.version.cuda}"

    def now(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def enter(self) -> None:
        self.module.set_device(self.itself)

    def thread(self, target: Callable[[], object], name: str) -> Any:
        return threading.Thread(target=target, name=name, daemon=True)

    # --- streams and events ---

    def stream(self) -> Any:
        """Make a stream that does not wait for the legacy one."""
        return self.module.Stream(device=self.itself)

    @property
    def legacy(self) -> Any:
        return self.module.default_stream(self.itself)

    def current(self) -> Any:
        return self.module.current_stream(self.itself)

    def on(self, stream: Any) -> AbstractContextManager[Any]:
        """Make a stream current: what follows is issued to it."""
        made: AbstractContextManager[Any] = self.module.stream(stream)
        return made

    def event(self, *, blocking: bool = True) -> Any:
        """Make an event whose waiter sleeps, or else spins."""
        return self.module.Event(blocking=blocking)

    def mark(self) -> Any:
        """Record an event that knows its instant, on the current stream."""
        made = self.module.Event(enable_timing=True)
        made.record()
        return made

    def restart_clock(self) -> None:
        """Compare the device's clock with the host's, which drift apart. The current stream must be idle."""
        self._origin = self._find_origin()

    def instants(self, marks: Sequence[Any]) -> list[float]:
        """Return when marks that have been passed were, on the host's clock, s; within some 10 µs."""
        mark, at_s = self._origin
        return [at_s + mark.elapsed_time(each) / 1e3 for each in marks]

    def synchronize(self) -> None:
        self.module.synchronize(self.itself)

    # --- work ---

    def launch(self, kernel: Callable[[], object], cost_s: float = 0.0) -> None:  # for the simulated one
        kernel()

    def spin(self, seconds: float) -> None:
        """Keep the current stream busy with a kernel that does nothing."""
        self.module._sleep(int(seconds * self._cycles_per_s))

    def capture(self, kernel: Callable[[], object], cost_s: float = 0.0) -> Callable[[], None]:
        """Capture torch operations as a graph; return what replays it on the current stream."""
        kernel()  # libraries allocate their workspaces outside of the capture
        self.synchronize()
        graph = self.module.CUDAGraph()
        with self.module.graph(graph):
            kernel()
        replay: Callable[[], None] = graph.replay
        return replay

    # --- copies ---

    def pinned(self, size_bytes: int) -> torch.Tensor:
        """Allocate bytes on the host that a copy engine reads and writes."""
        return torch.empty(size_bytes, dtype=torch.uint8, pin_memory=True)

    def copy_out(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Issue a copy to pinned memory to the current stream."""
        target.copy_(source, non_blocking=True)

    copy_in = copy_out  # from pinned memory, likewise

    def copy_to_host(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Copy to pageable memory as Mooncake's TCP does: `cudaMemcpy`, on the legacy stream."""
        if status := self._memcpy(target.data_ptr(), source.data_ptr(), target.nbytes, _ANY_DIRECTION):
            raise RuntimeError(f"cudaMemcpy: error {status}")

    copy_to_device = copy_to_host  # from pageable memory, likewise; when it returns, the bytes may not have arrived

    def lane(self) -> StreamLane:
        return StreamLane(self.itself)

    def to_list(self, tensor: torch.Tensor) -> list[Any]:
        """Fetch a tensor as `tolist` does: through pageable memory, behind the current stream."""
        found: list[Any] = tensor.tolist()
        return found

    def allocated(self) -> int:
        """Return how many bytes of the device torch's tensors have."""
        return int(self.module.memory_allocated(self.itself))

    # --- inside ---

    def _count_cycles(self) -> float:
        self.module._sleep(_SPIN_CYCLES)  # the clock rises under load
        first = self.mark()
        self.module._sleep(_SPIN_CYCLES)
        last = self.mark()
        last.synchronize()
        return float(_SPIN_CYCLES / (first.elapsed_time(last) / 1e3))

    def _find_origin(self) -> tuple[Any, float]:
        self.module.current_stream(self.itself).synchronize()
        best: tuple[float, Any, float] | None = None
        for _ in range(20):
            began_s = self.now()
            mark = self.mark()
            mark.synchronize()
            took_s = self.now() - began_s
            if best is None or took_s < best[0]:
                best = took_s, mark, began_s + took_s / 2
        assert best is not None
        return best[1:]


def _find_memcpy() -> Callable[[int, int, int, int], int]:
    for name in _RUNTIMES:
        try:
            function = ctypes.CDLL(name).cudaMemcpy  # releases the GIL while it copies
        except (OSError, AttributeError):
            continue
        function.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
        found: Callable[[int, int, int, int], int] = function
        return found
    raise RuntimeError(f"none of {', '.join(_RUNTIMES)} can be loaded, though torch has a CUDA device")
