"""`python -m benchmarks.microbench`: what the connector costs. Two minutes; the sender's CPU is measured for root alone."""

import argparse
import asyncio
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from benchmarks import harness
from benchmarks.microbench.children import PREPARE, Children, Place
from benchmarks.microbench.figures import Figure, line, to_plain
from benchmarks.microbench.pushes import CACHE_BYTES
from benchmarks.microbench.sender_cpu import LINK_MBIT_S
from benchmarks.overlap.network import DECODE_DATA, PREFILL_DATA, Network, NetworkError
from benchmarks.overlap.session import wait_until_quiet
from benchmarks.usage import OtherCpu

ALONE: Final = ("planner", "digests")  # they send nothing
THROTTLED: Final = "sender-cpu"
PARTS: Final = ("planner", "hooks", "pushes", THROTTLED, "digests")


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
    add = made.add_argument
    add("--parts", nargs="+", choices=PARTS, default=PARTS)
    add("--max-other-cpu", type=float, default=0.15, metavar="CORES", help="with more, a part's figures are noisy")
    add("--patience-s", type=float, default=10.0, help="before each part, for the machine to become quiet")
    add("--json", type=Path, metavar="FILE", help="write the figures there")
    add("--logs", type=Path, metavar="FOLDER", help="keep the processes' logs")
    return made


def measure(arguments: argparse.Namespace, children: Children) -> Iterator[dict[str, Any]]:
    meter = OtherCpu(os.getpid())
    for name in arguments.parts:
        asyncio.run(wait_until_quiet(meter, arguments.max_other_cpu, arguments.patience_s))
        part: dict[str, Any] = {"part": name, "load_average": os.getloadavg()[0], "figures": []}
        print(f"{name} (load average {part['load_average']:.2f})", flush=True)
        meter.restart()
        try:
            for figure in _figures(name, children):
                print(f"  {line(figure)}", flush=True)
                part["figures"].append({"part": name, **to_plain(figure)})
        except NetworkError as exc:
            part["skipped"] = str(exc)
            print(f"  skipped: {exc}")
        else:
            part["other_cores"] = other = meter.other_cores()
            noisy = "noisy: " if other > arguments.max_other_cpu else ""
            print(f"  {noisy}other processes used {other:.2f} cores", flush=True)
        yield part


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parser().parse_args(argv)
    parts: list[dict[str, Any]] = []

    def take() -> int:
        began = time.monotonic()
        try:
            with harness.workplace("micro", logs=arguments.logs, prepare=PREPARE) as (server, folder):
                for part in measure(arguments, Children(server, folder)):
                    parts.append(part)  # noqa: PERF402  # what was measured is written even if a later part fails
        finally:
            if arguments.json:
                arguments.json.write_text(json.dumps(parts, indent=1) + "\n")
        figures = [figure for part in parts for figure in part["figures"]]
        missed = sum(figure["met"] is False for figure in figures)
        print(f"{len(figures)} figures in {time.monotonic() - began:.0f} s, {missed} missed their target")
        return 0

    return harness.run("microbench", take)


if __name__ == "__main__":
    sys.exit(main())
