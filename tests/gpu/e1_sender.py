"""E1: when each layer leaves, with the real sender, under a forward pass that is launched far ahead."""

from collections.abc import Mapping
from typing import Any, Final

from tests.gpu import rank
from tests.gpu.device import Device
from tests.gpu.harness import Expect, Scale
from tests.gpu.model import Hooks, Model, shape

TITLE: Final = "the real sender under layers that are launched far ahead"
DRIVEN: Final = rank.DRIVEN  # on the simulated device: by its clock
LAYERS: Final = 32
EXPECTED: Final = (
    Expect("launched before the device had passed a quarter, layers", ">=", 24, "else nothing is late here"),
    Expect("submitted before the last event, of 32", ">=", 30, "each layer's own event is waited for alone"),
    Expect("submitted before its own event", "==", 0, "I1: the event stands behind the layer's KV"),
    Expect(
        "latest after its own event, ms", "<=", 1.0, "a sleeping waiter wakes within 0.1 ms; then one plan", timed=True
    ),
    Expect("elements that differ on D", "==", 0, "a push reads what was written, whatever is launched behind it"),
    Expect("transfers that did not commit", "==", 0, "the link does not fail"),
)
_CLOCKS_S: Final = 50e-6  # by which the two clocks may differ


class MarkedHooks:
    """Marks the point behind each layer's KV, then tells the connector."""

    def __init__(self, device: Device, hooks: Hooks) -> None:
        self.marks: list[Any] = []
        self.launched_s: list[float] = []
        self._device, self._hooks = device, hooks

    def attention_begins(self, layer: int) -> None:
        self._hooks.attention_begins(layer)

    def kv_issued(self, layer: int) -> None:
        self.marks.append(self._device.mark())
        self._hooks.kv_issued(layer)
        self.launched_s.append(self._device.now())


def run(device: Device, scale: Scale) -> Mapping[str, Any]:
    """Run some passes; the worst of each figure counts."""
    stream, link_stream = device.stream(), device.stream()
    model = Model(device, shape(scale.full, LAYERS), tokens=scale.of(2048, 32))
    pieces = model.pieces()
    ahead, before_last, early, differing, failed = [], [], 0, 0, 0
    late_ms: list[float] = []
    with rank.PushingRank(device, model, (stream, link_stream), "event", 25e9) as p, device.on(stream):
        for warm_up in [True] + [False] * scale.of(8, 2):
            device.synchronize()
            device.restart_clock()
            p.begin()
            hooks = MarkedHooks(device, p.sync)
            model.run(pieces, hooks)
            transfer, _ = p.finish()
            device.synchronize()
            if warm_up:  # the GEMMs' first calls load libraries
                continue
            written = device.instants(hooks.marks)
            pairs = [(submit.at_s, written[submit.layer]) for submit in p.link.submits]
            ahead.append(sum(at < written[LAYERS // 4] for at in hooks.launched_s))
            before_last.append(len({submit.layer for submit in p.link.submits if submit.at_s < written[-1]}))
            early += sum(at < own - _CLOCKS_S for at, own in pairs)
            late_ms += [(at - own) * 1e3 for at, own in pairs]
            differing += p.differing()
            failed += "commit" not in transfer.marks
    late_ms.sort()
    scale.notes.append(f"after its own event, ms: median {late_ms[len(late_ms) // 2]:.3f}, of {len(late_ms)}")
    return {
        EXPECTED[0].figure: min(ahead),
        EXPECTED[1].figure: min(before_last),
        EXPECTED[2].figure: early,
        EXPECTED[3].figure: round(late_ms[-1], 3),
        EXPECTED[4].figure: differing,
        EXPECTED[5].figure: failed,
    }
