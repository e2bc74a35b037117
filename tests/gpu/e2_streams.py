"""E2: copies through pageable memory beside a busy model: on the default stream's account, or with a model stream of one's own.

Mooncake's TCP copies 64 KiB pieces with `cudaMemcpy`, on the legacy default stream. That is torch's default stream as well: a
model that computes there makes each piece wait for everything that it has launched.
"""

from collections.abc import Mapping
from typing import Any, Final

import torch

from tests.gpu.device import Device
from tests.gpu.harness import Expect, Scale, percentile
from tests.gpu.model import Model, shape

TITLE: Final = "64 KiB copies through pageable memory beside a busy model, default against own stream"
LAYERS: Final = 32
PIECE_BYTES: Final = 64 << 10
AHEAD: Final = 2  # passes that are launched before the oldest has ended
EXPECTED: Final = (
    Expect(
        "own stream: median piece to host, ms", "<=", 0.2, "nothing to wait for: some 10 GB/s and a call", timed=True
    ),
    Expect("own stream: median piece to device, ms", "<=", 0.2, "likewise", timed=True),
    Expect("default stream: pieces to host per s", "<=", 500, "each behind up to three passes of 40 ms", timed=True),
    Expect("default stream: pieces to device per s", "<=", 500, "likewise", timed=True),
    Expect("own stream: a pass beside copies, by one alone", "<=", 1.1, "64 KiB pieces are little traffic", timed=True),
    Expect("pieces that arrived wrong", "==", 0, "where they wait does not change what they bring"),
)


class NoHooks:
    def attention_begins(self, layer: int) -> None:
        pass

    def kv_issued(self, layer: int) -> None:
        pass


class Copier:
    """A thread that copies pieces one after the other, as Mooncake's does, until it is told to stop."""

    def __init__(self, device: Device, *, to_host: bool, size: int = PIECE_BYTES) -> None:
        self.took_s: list[float] = []
        self._device, self._stopping = device, False
        on_device = torch.randint(0, 256, (size,), dtype=torch.uint8, device=device.memory)
        on_host = torch.full((size,), 7, dtype=torch.uint8)
        self._pair = (on_host, on_device) if to_host else (on_device, on_host)
        self._copy = device.copy_to_host if to_host else device.copy_to_device
        device.synchronize()
        self._thread = device.thread(self._run, "copier")

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> bool:
        """Stop; return whether the last piece is what it should be."""
        self._stopping = True
        self._thread.join()
        self._device.synchronize()
        target, source = self._pair
        return bool((target.cpu() == source.cpu()).all())

    def _run(self) -> None:
        while not self._stopping:
            began_s = self._device.now()
            self._copy(*self._pair)
            self.took_s.append(self._device.now() - began_s)


def run(device: Device, scale: Scale) -> Mapping[str, Any]:
    """Run passes on either stream, alone and beside copies in either direction."""
    model = Model(device, shape(scale.full, scale.of(LAYERS, 4)), tokens=scale.of(2048, 32))
    seen: dict[str, Any] = {EXPECTED[-1].figure: 0}
    for name, stream in (("own", device.stream()), ("default", device.legacy)):
        _passes(device, model, stream, 2)
        alone_s = _passes(device, model, stream, scale.of(50, 3))
        for direction in ("host", "device"):
            copier = Copier(device, to_host=direction == "host")
            copier.start()
            beside_s = _passes(device, model, stream, scale.of(50, 3))
            seen[EXPECTED[-1].figure] += not copier.stop()
            seen[f"{name} stream: median piece to {direction}, ms"] = round(percentile(copier.took_s, 0.5) * 1e3, 4)
            seen[f"{name} stream: pieces to {direction} per s"] = round(len(copier.took_s) / beside_s)
            ratio = f"{name} stream: a pass beside copies, by one alone"
            seen[ratio] = max(seen.get(ratio, 0.0), round(beside_s / alone_s, 3))
    return seen


def _passes(device: Device, model: Model, stream: Any, passes: int) -> float:
    """Launch passes, some ahead; return how long all of them took, s."""
    pieces, ends, began_s = model.pieces(), [], device.now()
    with device.on(stream):
        for _ in range(passes):
            model.run(pieces, NoHooks())
            end = device.event()
            end.record(stream)
            ends.append(end)
            if len(ends) > AHEAD:
                ends.pop(0).synchronize()
        ends[-1].synchronize()
    return device.now() - began_s
