"""E3: Mooncake over TCP from GPU memory to GPU memory of another process: digests, and the fence closed in the middle of a write.

P's side is this process; D's has its own. A fence is late if anything but D's own marks is in its memory a while after `close`
has returned. Mooncake's copies to the device may be staged by then: D waits for the legacy stream before it marks its memory,
in every second round; in the others it does not, and what came late is told and not judged.
"""

import multiprocessing
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Final

import torch
from msgspec.structs import replace

from baton.kv_connector.engine.base import EngineFactory, ReceivingEngine
from baton.kv_connector.engine.mooncake import MooncakeFactory
from baton.kv_connector.layout.copy_plan import plan_layers
from baton.kv_connector.layout.regions import Region
from baton.kv_connector.worker_side.digest import RegionDigests
from tests.gpu.device import Device
from tests.gpu.harness import Expect, Scale
from tests.support.memory_engine import MemoryFabric

TITLE: Final = "Mooncake over TCP between two processes' device memory: digests and the fence"
BLOCK_BYTES: Final = 256 << 10
LATE_S: Final = 3.0  # how long late bytes are waited for: Mooncake gives up a write after 2 s
ANSWER_S: Final = 30.0
PUSH_S: Final = 8.0  # Mooncake gives up a write after 5 s
MARK: Final = 0xA5
EXPECTED: Final = (
    Expect("transfers", ">=", 10, "some of 64 MiB, scattered"),
    Expect("digests that differ", "==", 0, "what D holds is what P had"),
    Expect("pushes that failed before the fence", "==", 0, "TCP on one machine"),
    Expect("fences closed in the middle of a write", ">=", 2, "else they show nothing"),
    Expect("pushes acknowledged in spite of the fence", "==", 0, "a write that was cut off must not count"),
    Expect("late bytes", "==", 0, "a destroyed engine writes no more; the legacy stream was waited for"),
    Expect("MB/s", ">=", 500, "64 KiB pieces through pageable memory at both ends", timed=True, full=True),
)


class DecodeSide:
    """D: memory, a receiving engine, digests. Calls come from another process unless it is a dry run."""

    def __init__(self, device: Device, engines: EngineFactory, blocks: int, late_s: float) -> None:
        self.memory = torch.zeros(blocks, BLOCK_BYTES, dtype=torch.uint8, device=device.memory)
        self._device, self._engines, self._late_s = device, engines, late_s
        self._stream = device.stream()
        self._digests = RegionDigests([self.memory], [region(self.memory)])
        self._receiver: ReceivingEngine | None = None
        self.while_waiting: Callable[[], object] = lambda: None
        device.synchronize()

    def open(self) -> tuple[str, int]:
        """Close the receiving engine, empty the memory, make another engine; return its session and the memory's address."""
        if self._receiver is not None:
            self._receiver.close()
        self._device.launch(self.memory.zero_)
        self._device.synchronize()
        self._receiver = self._engines.receiver([(self.memory.data_ptr(), self.memory.nbytes)])
        return self._receiver.session, self.memory.data_ptr()

    def digests(self, blocks: Sequence[int]) -> bytes:
        """Return the digests of what has arrived. All of it is acknowledged, and must be ordered before it is read."""
        self._wait_for_legacy()
        return self._digests(blocks, [0])

    def fence(self, first: int, *, ordered: bool) -> tuple[int, int]:
        """Close the engine as soon as a block that is written first has changed.

        Returns:
            How many blocks had been written to by then, and how many bytes came after our marks.
        """
        assert self._receiver is not None
        sample, give_up = torch.zeros(64, dtype=torch.uint8), self._device.now() + 5
        while not sample.any() and self._device.now() < give_up:
            self.look()
            self._device.copy_to_host(sample, self.memory[first, :64])
        self._receiver.close()
        if ordered:
            self._wait_for_legacy()
        with self._device.on(self._stream):
            written = self._fetch(lambda: torch.count_nonzero(self.memory.any(dim=1)))
            self._device.launch(lambda: self.memory.fill_(MARK))
            self._stream.synchronize()
            self._device.sleep(self._late_s)
            self.look()
            late = self._fetch(lambda: torch.count_nonzero(self.memory != MARK))
        return written, late

    def look(self) -> None:
        """For the stand-in network of a dry run: what is on its way may land."""

    def _fetch(self, count: Any) -> int:
        found: list[torch.Tensor] = []
        self._device.launch(lambda: found.append(count()))
        self._stream.synchronize()
        return int(found[0])

    def _wait_for_legacy(self) -> None:
        behind = self._device.event()
        behind.record(self._device.legacy)
        behind.synchronize()


class DrySide(DecodeSide):
    """D in this process, and a network whose writes land when it looks."""

    def __init__(self, device: Device, fabric: MemoryFabric, blocks: int) -> None:
        super().__init__(device, fabric.factory("d"), blocks, late_s=0.01)
        self.fabric = fabric

    def look(self) -> None:
        self.fabric.land(3)


class RemoteSide:
    """D in a process of its own."""

    def __init__(self, connection: Any) -> None:
        self.while_waiting: Callable[[], object] = lambda: None  # what this process does while it waits
        self._connection = connection

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            self._connection.send((name, args, kwargs))
            give_up = time.monotonic() + ANSWER_S
            while not self._connection.poll(0.0005):
                self.while_waiting()
                if time.monotonic() > give_up:
                    raise TimeoutError(f"D's process did not answer {name} within {ANSWER_S:g} s")
            error, result = self._connection.recv()
            if error:
                raise RuntimeError(f"D's process: {error}")
            return result

        return call


def serve(connection: Any, late: bool, blocks: int) -> None:  # an argument of a process
    """Be D until the connection is closed: the other process's body."""
    with ExitStack() as stack:
        side = DecodeSide(_device_here(stack, late=late), MooncakeFactory(host="127.0.0.1"), blocks, LATE_S)
        while True:
            try:
                name, args, kwargs = connection.recv()
            except EOFError:
                return
            try:
                connection.send(("", getattr(side, name)(*args, **kwargs)))
            except Exception as exc:  # noqa: BLE001  # a process boundary
                connection.send((repr(exc), None))


def _device_here(stack: ExitStack, *, late: bool) -> Device:
    if not late:
        return Device()
    from tests.gpu.late import late as simulated

    return stack.enter_context(simulated(virtual=False))


@contextmanager
def both_sides(device: Device, scale: Scale, blocks: int) -> Iterator[tuple[DecodeSide | RemoteSide, EngineFactory]]:
    """Give D, and what makes P's engine."""
    if not scale.processes:
        fabric = MemoryFabric(automatic=False)
        yield DrySide(device, fabric, blocks), fabric.factory("p")
        return
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=serve, args=(theirs, device.late, blocks), daemon=True)
    process.start()
    theirs.close()
    engines = MooncakeFactory(host="127.0.0.1", max_in_flight=1024, push_timeout_s=PUSH_S)
    try:
        yield RemoteSide(ours), engines
    finally:
        ours.close()
        process.join(5)
        if process.is_alive():
            process.kill()
        engines.close()


def region(memory: torch.Tensor) -> Region:
    return Region(
        name="kv",
        layer=0,
        base_addr=memory.data_ptr(),
        block_bytes=BLOCK_BYTES,
        stride_bytes=BLOCK_BYTES,
        num_blocks=len(memory),
    )


def run(device: Device, scale: Scale) -> Mapping[str, Any]:
    """Push scattered blocks and compare; then close the fence under pushes of everything."""
    blocks, chance = scale.of(2048, 48), random.Random(3)
    memory = torch.randint(1, 256, (blocks, BLOCK_BYTES), dtype=torch.uint8, device=device.memory)
    ours = RegionDigests([memory], [region(memory)])
    device.synchronize()
    seen: dict[str, Any] = {each.figure: 0 for each in EXPECTED}
    until_s = device.now() + scale.seconds
    with both_sides(device, scale, blocks) as (decode, engines):
        sender = engines.sender([(memory.data_ptr(), memory.nbytes)])
        target, address = decode.open()
        there = replace(region(memory), base_addr=address)

        def push(source: Sequence[int], destination: Sequence[int]) -> Any:
            return sender.submit(target, plan_layers([(region(memory), there)], source, destination))

        took_s, size = 0.0, blocks // 8
        for _ in range(scale.of(12, 10)):
            source, destination = chance.sample(range(blocks), size), chance.sample(range(blocks), size)
            began_s = device.now()
            ok = _ended(device, push(source, destination), decode)
            took_s += device.now() - began_s
            seen["transfers"] += 1
            seen["pushes that failed before the fence"] += not ok
            seen["digests that differ"] += decode.digests(destination) != ours(source, [0])
        seen["MB/s"] = round(seen["transfers"] * size * BLOCK_BYTES / 1e6 / max(took_s, 1e-9))
        for number in range(scale.of(5, 4)):
            if device.now() > until_s:
                scale.notes.append(f"time for {number} fences only")
                break
            target, _ = decode.open()
            everywhere = chance.sample(range(blocks), blocks)
            call = push(range(blocks), everywhere)
            decode.while_waiting = call.poll  # it goes on only while it is polled
            written, late = decode.fence(everywhere[0], ordered=number % 2 == 0)
            name = "late bytes" if number % 2 == 0 else "late bytes where the legacy stream was not waited for"
            seen[name] = seen.get(name, 0) + late
            seen["fences closed in the middle of a write"] += 0 < written < blocks
            seen["pushes acknowledged in spite of the fence"] += _ended(device, call) is True and written < blocks
    return seen


def _ended(device: Device, call: Any, decode: object = None) -> bool | None:
    """Poll a push until it has ended."""
    give_up = device.now() + PUSH_S
    while (result := call.poll()) is None and device.now() < give_up:
        device.sleep(0.0005)
        if isinstance(decode, DrySide):
            decode.look()
    found: bool | None = result
    return found
