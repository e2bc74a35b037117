"""E4: whether KV that arrived through pageable memory is seen by a kernel of another stream once the copy has returned.

On D, Mooncake's TCP calls `cudaMemcpy` from pageable memory. It returns when the bytes are staged. Attention runs on the model's
stream, which does not wait for the legacy one: what orders the two is an event behind the copy on the legacy stream. Each round
writes its number into one of some pieces and lets the reading stream fetch it at once.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

import torch

from tests.gpu.device import Device
from tests.gpu.harness import Expect, Scale

TITLE: Final = "a pageable copy to the device has returned: does another stream see it?"
EXPECTED: Final = (
    Expect("stale reads with the event", "==", 0, "the legacy stream's event stands behind the copy"),
    Expect("stale reads with the event, copy engine busy", "==", 0, "likewise"),
    Expect(
        "rounds with the event that were left out", "==", 0, "10⁶: rare orders show in many; 25 µs each", timed=True
    ),
    Expect("share of reads that were prompt", ">=", 0.5, "a read that comes a round late shows nothing"),
)
PIECE_WORDS: Final = (64 << 10) // 8
PIECES: Final = 16
BATCH: Final = 4096  # rounds between looks at what was read
PRESSURE_BYTES: Final = 32 << 20


class Bench:
    """The pieces, and what the reading stream has seen of them."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.reading, self.pressing = device.stream(), device.stream()
        self.host = torch.zeros(PIECE_WORDS, dtype=torch.int64)
        self.pieces = list(torch.zeros(PIECES, PIECE_WORDS, dtype=torch.int64, device=device.memory).unbind())
        self.last_words = [piece[-1:] for piece in self.pieces]
        self.seen = torch.zeros(BATCH, 1, dtype=torch.int64, device=device.memory)
        self.places = list(self.seen.unbind())
        self.blocks = (
            device.pinned(PRESSURE_BYTES),
            torch.empty(PRESSURE_BYTES, dtype=torch.uint8, device=device.memory),
        )
        self.numbers = self.host.numpy()
        self.events = [device.event() for _ in range(PIECES)]
        device.synchronize()

    def batch(self, first: int, rounds: int, *, event: bool, pressed: bool) -> tuple[int, int]:
        """Do some rounds; return how many read an older number, and how many read their own."""
        device = self.device
        with device.on(self.reading):
            for place in range(rounds):
                if pressed and place % 8 == 0:
                    self._press()
                self.numbers[-1] = first + place
                piece = (first + place) % PIECES
                device.copy_to_device(self.pieces[piece], self.host)
                if event:
                    self.events[piece].record(device.legacy)
                    self.reading.wait_event(self.events[piece])
                self._read(place, piece)
        device.synchronize()
        found = self.seen[:rounds, 0].cpu()
        own = torch.arange(first, first + rounds)
        return int((found < own).sum()), int((found == own).sum())

    def _read(self, place: int, piece: int) -> None:
        target, source = self.places[place], self.last_words[piece]
        self.device.launch(partial(torch.add, source, 0, out=target))  # a kernel, as attention is

    def _press(self) -> None:
        """Keep the engine that copies to the device busy, a little ahead."""
        with self.device.on(self.pressing):
            if self.pressing.query():
                self.device.copy_in(self.blocks[1], self.blocks[0])
                self.device.copy_in(self.blocks[1], self.blocks[0])


def run(device: Device, scale: Scale) -> Mapping[str, Any]:
    """Run rounds with and without the event, with an idle and with a busy copy engine, each for its share of the time."""
    bench, first = Bench(device), 1
    seen: dict[str, Any] = {}
    prompt = done_in_all = 0
    for name, event, pressed, wanted, share in (
        ("with the event", True, False, 1_000_000, 0.7),
        ("with the event, copy engine busy", True, True, 200_000, 0.1),
        ("without the event", False, False, 200_000, 0.1),
        ("without the event, copy engine busy", False, True, 200_000, 0.1),
    ):
        stale = done = 0
        until_s, most = device.now() + share * scale.seconds, scale.of(wanted, 64)
        while done < most and device.now() < until_s:
            rounds = min(scale.of(BATCH // 8 if pressed else BATCH, 32), most - done)
            older, own = bench.batch(first, rounds, event=event, pressed=pressed)
            first, done, stale, prompt = first + rounds, done + rounds, stale + older, prompt + older + own
        seen |= {f"stale reads {name}": stale, f"rounds {name}": done, f"rounds {name} that were left out": most - done}
        done_in_all += done
    seen["share of reads that were prompt"] = round(prompt / done_in_all, 4)
    scale.notes.append("without the event any number of stale reads is allowed: it says whether the event is needed")
    return seen
