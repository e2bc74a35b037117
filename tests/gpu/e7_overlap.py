"""E7: how much of a transfer hides behind the prefill: Qwen3-8B-shaped layers, throttled links, every `layer_sync` policy.

C is the pass alone, X the bytes by the link's rate, T from the first launch to the COMMIT. Hooks do not run inside captured graphs,
so a layer is replayed in pieces with the hooks between them, as with piecewise graphs.
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from tests.gpu import rank
from tests.gpu.device import Device
from tests.gpu.e2_streams import NoHooks
from tests.gpu.harness import Expect, Scale
from tests.gpu.model import Model, shape

TITLE: Final = "layer by layer behind the prefill: event, stream and forward, on throttled links"
DRIVEN: Final = rank.DRIVEN
LAYERS: Final = 36
TOKENS: Final = (512, 2048, 4096, 16384)
LINKS_GB_PER_S: Final = (2, 10, 25)
EXPECTED: Final = (
    Expect("event: (T - last layer) by max(C, X), worst", "<=", 1.05, "all but the last layer hides", timed=True),
    Expect(
        "stream: (T - last layer) by max(C, X), worst",
        "<=",
        1.5,
        "launches wait for the device, layer by layer",
        timed=True,
    ),
    Expect("forward: T by C + X, least", ">=", 0.95, "nothing hides, else C or X is not what it seems", timed=True),
    Expect("transfers that did not commit", "==", 0, "the link does not fail"),
    Expect("elements that differ on D", "==", 0, "I1, graphs or not"),
    Expect("cells that time did not allow", "==", 0, "some 20 s in all"),
)


class Cell(NamedTuple):
    policy: str
    compute_s: float
    link_s: float
    took_s: float

    @property
    def excess(self) -> float:
        """T without the last layer, by what it would be if all else was hidden."""
        return (self.took_s - self.link_s / LAYERS) / max(self.compute_s, self.link_s)

    @property
    def hidden(self) -> float:
        """Share of the shorter of C and X that disappeared behind the longer."""
        return (self.compute_s + self.link_s - self.took_s) / min(self.compute_s, self.link_s)


class Bench:
    """Streams, counts, and the time that is left."""

    def __init__(self, device: Device, scale: Scale) -> None:
        self.device, self.scale = device, scale
        self.streams = device.stream(), device.stream()
        self.until_s = device.now() + scale.seconds
        self.failed = self.differing = self.left_out = 0
        self.cells: list[Cell] = []

    def measure(self, tokens: int, *, graphs: bool) -> None:
        """Measure every link and policy with a prompt of so many tokens."""
        device, scale = self.device, self.scale
        model = Model(device, shape(scale.full, LAYERS, layer_s=tokens * 0.65e-6), scale.of(tokens, 32))
        layer_bytes = model.blocks * model.shape.block_bytes
        smaller = layer_bytes / (tokens * 4096)  # than Qwen3-8B's: in a dry run the link is slower by as much
        with device.on(self.streams[0]):
            pieces = model.pieces(graphs=graphs)
            compute_s = min(self._alone(model, pieces) for _ in range(3))
            for link in LINKS_GB_PER_S:
                for policy in ("event", "stream", "forward"):
                    if device.now() > self.until_s:
                        self.left_out += 1
                        continue
                    rate = link * 1e9 * smaller
                    took_s = self._push(model, pieces, policy, rate)
                    cell = Cell(policy, compute_s, LAYERS * layer_bytes / rate, took_s)
                    self.cells.append(cell)
                    scale.notes.append(
                        f"{tokens} tokens, {'graphs' if graphs else 'eager'}, {link} GB/s, {policy}: C {compute_s * 1e3:.1f} ms, "
                        f"X {cell.link_s * 1e3:.1f} ms, T {took_s * 1e3:.1f} ms, hidden {cell.hidden:.3f}"
                    )

    def _alone(self, model: Model, pieces: Any) -> float:
        self.device.synchronize()
        began_s = self.device.now()
        model.run(pieces, NoHooks())
        self.device.synchronize()
        return self.device.now() - began_s

    def _push(self, model: Model, pieces: Any, policy: str, rate: float) -> float:
        with rank.PushingRank(self.device, model, self.streams, policy, rate) as pushing:
            pushing.begin()
            began_s = self.device.now()
            model.run(pieces, pushing.sync)
            transfer, _ = pushing.finish()
            self.failed += "commit" not in transfer.marks
            self.differing += pushing.differing()
        return transfer.marks.get("commit", self.device.now()) - began_s


def run(device: Device, scale: Scale) -> Mapping[str, Any]:
    """Measure every cell, small prompts first."""
    bench = Bench(device, scale)
    for tokens in TOKENS[: scale.of(len(TOKENS), 1)]:
        for graphs in (False, True):
            bench.measure(tokens, graphs=graphs)
    of = {policy: [cell for cell in bench.cells if cell.policy == policy] for policy in ("event", "stream", "forward")}
    return {
        EXPECTED[0].figure: round(max(cell.excess for cell in of["event"]), 3),
        EXPECTED[1].figure: round(max(cell.excess for cell in of["stream"]), 3),
        EXPECTED[2].figure: round(min(cell.took_s / (cell.compute_s + cell.link_s) for cell in of["forward"]), 3),
        EXPECTED[3].figure: bench.failed,
        EXPECTED[4].figure: bench.differing,
        EXPECTED[5].figure: bench.left_out,
    }
