"""E5: how a step's sampled tokens come to the host: `tolist`, the ways of vLLM's runners, and `TokenTransfer`.

A step is a kernel of some milliseconds that ends with the ids. Latency counts from the step's end on the device to a Python list on
the host; issuing is what the model's thread spends before it may launch the next step; CPU is that of all threads in that time.
"""

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

import torch

from baton.model_runner.tokens.packing import most_bytes
from baton.model_runner.tokens.transfer import TokenTransfer
from tests.gpu.device import Device
from tests.gpu.harness import Expect, Scale

TITLE: Final = "a step's tokens to the host: tolist, vLLM's ways, TokenTransfer"
VIRTUAL: Final = False  # its threads wait for each other by the machine's clock
BATCHES: Final = (1, 64, 256)
STEP_S: Final = 0.002
WAYS: Final = ("tolist", "event on the model's stream", "copy stream", "TokenTransfer")
EXPECTED: Final = (
    Expect("steps with wrong tokens", "==", 0, "whatever way they came"),
    Expect("tolist: latency, ms, largest batch", "<=", 0.1, "one small copy and a spinning wait", timed=True),
    Expect("copy stream: latency, ms, largest batch", "<=", 0.2, "a sleeping wait: one wake-up", timed=True),
    Expect(
        "TokenTransfer: latency, ms, largest batch", "<=", 0.3, "two wake-ups: the taker's and the reader's", timed=True
    ),
    Expect(
        "TokenTransfer: issuing, ms, largest batch",
        "<=",
        0.15,
        "a packed copy and an event on its own stream",
        timed=True,
    ),
    Expect("TokenTransfer: CPU of a step, share", "<=", 0.5, "nothing spins while the step runs", timed=True),
)

Fetch = Callable[[], list[Any]]
Issue = Callable[[torch.Tensor], Fetch]
Beside = Callable[[], object]  # what else happens in a step


def ways(device: Device, transfer: TokenTransfer, rows: int) -> dict[str, Issue]:
    """Return how each way issues a step's ids `[rows, 1]`, and then fetches them."""
    pinned = device.pinned(rows * 8).view(torch.int64).view(rows, 1)
    on_model, stream = device.event(blocking=False), device.stream()

    def with_event(ids: torch.Tensor) -> Fetch:  # as vLLM's V1 runner under synchronous scheduling
        device.copy_out(pinned, ids)
        on_model.record()
        on_model.synchronize()
        return pinned.tolist

    def with_stream(ids: torch.Tensor) -> Fetch:  # as vLLM's asynchronous output, on V1 and V2
        ready, target = device.event(), device.pinned(rows * 8).view(torch.int64).view(rows, 1)
        model = device.current()
        with device.on(stream):
            stream.wait_stream(model)
            device.copy_out(target, ids)
            ready.record()

        def fetch() -> list[Any]:
            ready.synchronize()
            found: list[Any] = target.tolist()
            return found

        return fetch

    def with_transfer(ids: torch.Tensor) -> Fetch:
        handle = transfer.submit({"ids": ids})

        def fetch() -> list[Any]:
            found: list[Any] = handle.result()["ids"].tolist()
            return found

        return fetch

    def with_tolist(ids: torch.Tensor) -> Fetch:
        return lambda: device.to_list(ids)

    return dict(zip(WAYS, (with_tolist, with_event, with_stream, with_transfer), strict=True))


@contextmanager
def transfers(device: Device, rows: int) -> Iterator[TokenTransfer]:
    """Give a started `TokenTransfer`."""
    made = TokenTransfer(device.lane(), most_bytes(max_num_seqs=rows))
    made.start()
    try:
        yield made
    finally:
        made.stop()


def measure(device: Device, issue: Issue, rows: int, steps: int, beside: Beside | None = None) -> dict[str, float]:
    """Run steps on the current stream; return medians, ms, and how many brought wrong tokens."""
    ids = torch.zeros(rows, 1, dtype=torch.int64, device=device.memory)
    numbers = torch.arange(rows, dtype=torch.int64, device=device.memory).view(rows, 1)
    latencies, issuings, wrong = [], [], 0
    device.synchronize()
    device.restart_clock()
    began_s, cpu_s = device.now(), time.process_time()
    for step in range(steps):
        if beside is not None:
            beside()
        device.spin(STEP_S)
        device.launch(partial(torch.add, numbers, 1000 * step, out=ids))
        end, issued_s = device.mark(), device.now()
        fetch = issue(ids)
        issuings.append(device.now() - issued_s)
        wrong += fetch() != [[1000 * step + row] for row in range(rows)]
        arrived_s = device.now()
        latencies.append(arrived_s - device.instants([end])[0])
    took_s, cpu_s = device.now() - began_s, time.process_time() - cpu_s
    return {
        "latency, ms": statistics.median(latencies) * 1e3,
        "worst of 100, ms": sorted(latencies)[int(0.99 * steps)] * 1e3,
        "issuing, ms": statistics.median(issuings) * 1e3,
        "CPU of a step, share": cpu_s / took_s,
        "wrong": wrong,
    }


def run(device: Device, scale: Scale) -> Mapping[str, Any]:
    """Measure each way with each batch; waits that come within issuing count there."""
    return compare(device, scale, BATCHES)


def compare(device: Device, scale: Scale, batches: Sequence[int], beside: Beside | None = None) -> dict[str, Any]:
    """Measure each way with each batch, beside something else."""
    seen: dict[str, Any] = {"steps with wrong tokens": 0}
    with device.on(device.stream()):
        for rows in batches:
            with transfers(device, rows) as transfer:
                for way, issue in ways(device, transfer, rows).items():
                    measure(device, issue, rows, scale.of(20, 1), beside)
                    found = measure(device, issue, rows, scale.of(300, 3), beside)
                    seen["steps with wrong tokens"] += found.pop("wrong")
                    last = rows == batches[-1]
                    for figure, value in found.items():
                        seen[f"{way}: {figure}, {'largest batch' if last else f'batch {rows}'}"] = round(value, 4)
        for way in WAYS:  # of all figures it alone has no batch
            seen[f"{way}: CPU of a step, share"] = seen.pop(f"{way}: CPU of a step, share, largest batch")
    return seen
