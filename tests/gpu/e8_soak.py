"""E8: passes of random lengths and policies, one after the other, some preempted: nothing is wrong, and nothing is left over."""

import gc
import random
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tests.gpu import rank
from tests.gpu.device import Device
from tests.gpu.harness import Expect, Scale
from tests.gpu.model import Model, shape

TITLE: Final = "soak: passes of random lengths and policies, some preempted"
DRIVEN: Final = rank.DRIVEN
LAYERS: Final = 16
TOKENS: Final = (256, 1024, 4096)
POLICIES: Final = ("event", "stream", "forward")
RATES: Final = (2e9, 10e9, 50e9)
EXPECTED: Final = (
    Expect("passes", ">=", 300, "about 100 ms each", full=True),
    Expect("elements that differ on D", "==", 0, "I1, again and again"),
    Expect("prompts that should have committed and did not", "==", 0, "the link does not fail"),
    Expect("preempted prompts that committed", "==", 0, "I2: a void ends a transfer"),
    Expect("preempted prompts", ">=", 1, "one in eight"),
    Expect("bytes of the device more than after a tenth", "<=", 0, "buffers are made once"),
    Expect("threads more than after a tenth", "<=", 0, "a rank ends its threads"),
    Expect("descriptors more than after a tenth", "<=", 0, "likewise"),
)


def run(device: Device, scale: Scale) -> Mapping[str, Any]:
    """Go on for the time that is given."""
    chance, streams = random.Random(1), (device.stream(), device.stream())
    models = [Model(device, shape(scale.full, scale.of(LAYERS, 4), 0.2e-3), scale.of(tokens, 32)) for tokens in TOKENS]
    until_s, most = device.now() + scale.seconds, scale.of(1 << 30, 20)
    began_s, base = device.now(), (0, 0, 0)
    passes = differing = failed = preempted = wrongly = 0
    with device.on(streams[0]):
        while passes < most and device.now() < until_s:
            preempts, model = chance.random() < 1 / 8, chance.choice(models)
            pushing = rank.PushingRank(device, model, streams, chance.choice(POLICIES), chance.choice(RATES))
            with pushing:
                pushing.begin()
                model.run(model.pieces(), pushing.sync)
                voided_s = device.now()
                if preempts:
                    pushing.void("preempted")
                transfer, _ = pushing.finish()
                committed = "commit" in transfer.marks
                differing += pushing.differing() if committed else 0
            passes, preempted = passes + 1, preempted + preempts
            failed += not committed and not preempts
            wrongly += preempts and transfer.marks.get("commit", 0.0) > voided_s  # before it is the device's good luck
            del pushing, transfer
            if base == (0, 0, 0) and (device.now() - began_s > scale.seconds / 10 or passes == most // 2):
                base = _left_over(device)
    now = _left_over(device)
    return {
        "passes": passes,
        "elements that differ on D": differing,
        "prompts that should have committed and did not": failed,
        "preempted prompts that committed": wrongly,
        "preempted prompts": preempted,
        "bytes of the device more than after a tenth": now[0] - base[0],
        "threads more than after a tenth": now[1] - base[1],
        "descriptors more than after a tenth": now[2] - base[2],
    }


def _left_over(device: Device) -> tuple[int, int, int]:
    device.synchronize()
    gc.collect()  # what waits for it in a cycle is not left over
    return device.allocated(), threading.active_count(), len(list(Path("/proc/self/fd").iterdir()))
