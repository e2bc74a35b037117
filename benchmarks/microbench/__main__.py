"""`python -m benchmarks.microbench`: what the connector costs. Two minutes; the sender's CPU is measured for root alone."""

import argparse
import asyncio
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from benchmarks import harness
from benchmarks.microbench.children import PREPARE, Children, Place
from benchmarks.microbench.figures import Figure, line
from benchmarks.microbench.pushes import CACHE_BYTES
from benchmarks.microbench.sender_cpu import LINK_MBIT_S
from benchmarks.overlap.network import DECODE_DATA, PREFILL_DATA, Network, NetworkError
from benchmarks.overlap.session import wait_until_quiet
from benchmarks.usage import OtherCpu

ALONE: Final = ("planner", "digests")  # they send nothing
THROTTLED: Final = "sender-cpu"
PARTS: Final = ("planner", "hooks", "pushes", THROTTLED, "digests")
MAX_OTHER_CORES: Final = 0.15  # with more, a part's figures are noisy
PATIENCE_S: Final = 10.0  # before each part, for the machine to become quiet


def _figures(name: str, children: Children) -> Iterator[Figure]:
    part = f"benchmarks.microbench.{name.replace('-', '_')}:measure"
    if name in ALONE:
        yield from children.figures(part, {})
        return
    here, there = Place(), Place()
    with ExitStack() as stack:
        if name == THROTTLED:
            network = stack.enter_context(Network())
            network.throttle(LINK_MBIT_S)
            here, there = Place(host=PREFILL_DATA, netns=network.prefill), Place(host=DECODE_DATA, netns=network.decode)
        target = stack.enter_context(children.receiver(CACHE_BYTES, there))
        yield from children.figures(part, {"target": target, "host": here.host}, here)


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python -m benchmarks.microbench", description=__doc__)
    made.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    made.add_argument("--logs", type=Path, metavar="FOLDER", help="keep the processes' logs")
    return made


def measure(name: str, children: Children) -> None:
    """Measure a part and print its figures."""
    meter = OtherCpu(os.getpid())
    asyncio.run(wait_until_quiet(meter, MAX_OTHER_CORES, PATIENCE_S))
    print(f"{name} (load average {os.getloadavg()[0]:.2f})", flush=True)
    meter.restart()
    try:
        for figure in _figures(name, children):
            print(f"  {line(figure)}", flush=True)
    except NetworkError as exc:
        print(f"  skipped: {exc}")
        return
    other_cores = meter.other_cores()
    noisy = "noisy: " if other_cores > MAX_OTHER_CORES else ""
    print(f"  {noisy}other processes used {other_cores:.2f} cores", flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parser().parse_args(argv)

    def take() -> int:
        with harness.workplace("micro", logs=arguments.logs, prepare=PREPARE) as (server, folder):
            children = Children(server, folder)
            for name in arguments.parts:
                measure(name, children)
        return 0

    return harness.run("microbench", take)


if __name__ == "__main__":
    sys.exit(main())
