"""E6: the same beside copies of KV to the host: pinned ones, issued ahead, and pageable ones as Mooncake's TCP makes them.

A blocking copy goes through pageable memory and was seen to queue behind the copies of other streams (vLLM #22754).
"""

from collections.abc import Mapping
from typing import Any, Final

import torch

from tests.gpu.device import Device
from tests.gpu.e2_streams import Copier
from tests.gpu.e5_tokens import STEP_S, WAYS, compare
from tests.gpu.harness import Expect, Scale

TITLE: Final = "a step's tokens to the host beside copies of KV"
VIRTUAL: Final = False
ROWS: Final = 64
KV_BYTES: Final = 16 << 20
PAGEABLE_BYTES: Final = (
    1 << 20
)  # as many 64 KiB pieces without Python between them: the thread needs the GIL less often
LINK_BYTES_PER_S: Final = 55e9  # of the bus, at most
_RATIO: Final = "{}: latency, TokenTransfer by tolist"
EXPECTED: Final = (
    Expect("steps with wrong tokens", "==", 0, "whatever else is copied"),
    Expect(_RATIO.format("pinned KV"), "<=", 1.1, "both wait for the copy engine", timed=True),
    Expect(_RATIO.format("pageable KV"), "<=", 1.1, "tolist shares the driver's staging with the KV", timed=True),
    Expect(
        "pinned KV: TokenTransfer: latency, ms",
        "<=",
        1.0,
        "the engine takes turns between streams: one copy of 16 MiB stands before it",
        timed=True,
    ),
    Expect("pageable KV: TokenTransfer: latency, ms", "<=", 0.4, "some staged pieces stand before it", timed=True),
)


class PinnedKv:
    """In each step as much as the bus carries in its time, on a stream of its own, unless two steps' worth waits there."""

    def __init__(self, device: Device) -> None:
        self._device, self._stream = device, device.stream()
        self._source = torch.zeros(KV_BYTES, dtype=torch.uint8, device=device.memory)
        self._target = device.pinned(KV_BYTES)
        self._ends = [device.event(), device.event()]
        self._copies = max(1, round(STEP_S * LINK_BYTES_PER_S / KV_BYTES))

    def __call__(self) -> None:
        if not self._ends[0].query():
            return
        with self._device.on(self._stream):
            for _ in range(self._copies):
                self._device.copy_out(self._target, self._source)
            self._ends.reverse()
            self._ends[1].record(self._stream)


def run(device: Device, scale: Scale) -> Mapping[str, Any]:
    """Measure beside nothing, beside pinned copies, and beside a thread that makes pageable ones."""
    seen: dict[str, Any] = {"steps with wrong tokens": 0}
    _add(seen, "alone", compare(device, scale, (ROWS,)))
    _add(seen, "pinned KV", compare(device, scale, (ROWS,), PinnedKv(device)))
    device.synchronize()
    copier = Copier(device, to_host=True, size=PAGEABLE_BYTES)
    copier.start()
    _add(seen, "pageable KV", compare(device, scale, (ROWS,)))
    if not copier.stop():
        scale.notes.append("the last piece of KV arrived wrong")
    scale.notes.append(f"{len(copier.took_s)} pageable copies of 1 MiB")
    return seen


def _add(seen: dict[str, Any], beside: str, found: dict[str, Any]) -> None:
    seen["steps with wrong tokens"] += found.pop("steps with wrong tokens")
    latencies = {way: found[f"{way}: latency, ms, largest batch"] for way in WAYS}
    seen |= {f"{beside}: {way}: latency, ms": value for way, value in latencies.items()}
    seen |= {f"{beside}: {way}: worst of 100, ms": found[f"{way}: worst of 100, ms, largest batch"] for way in WAYS}
    seen[_RATIO.format(beside)] = round(latencies["TokenTransfer"] / max(latencies["tolist"], 1e-6), 3)
