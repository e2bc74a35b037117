"""`python -m benchmarks.quick`: ratios beside a stored baseline. Exits 0, unless something could not be measured."""

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from baton.loadtest.errors import UsageError
from baton.loadtest.run.environment import environment, now
from benchmarks import harness
from benchmarks.harness import FAILURES, Spread, workplace
from benchmarks.proxy import session
from benchmarks.proxy.figures import ASGI, BATON, CHUNK, REQUEST
from benchmarks.proxy.stage import Plan
from benchmarks.proxy.subjects import subjects
from benchmarks.quick import connector, first_token
from benchmarks.quick.ratios import Sample, beside, figures, table
from benchmarks.usage import OtherCpu

BASELINE: Final = Path(__file__).resolve().parents[2] / "docs" / "benchmarks" / "quick.json"
# Of the proxy. The stored ratios are those of 16 requests at once.
PLAN: Final = Plan(rounds=5, short_requests=500, at_once=16, single_requests=5, streams=64, starts=2, tokens=96)
_METRICS: Final = {"proxy, CPU per request ÷ relay": REQUEST, "proxy, CPU per chunk ÷ relay": CHUNK}
Part = Callable[[], Iterator[Sample]]


def _proxy() -> Iterator[Sample]:
    """The proxy's CPU beside a featureless relay's, on mock engines: a short form of the proxy bench, without peers."""
    cores = os.sched_getaffinity(0)
    with tempfile.TemporaryDirectory(prefix="baton-quick-") as name:
        found, _ = subjects(Path(name))  # no peer is installed there
        chosen = [subject for subject in found if subject.name in (BATON, ASGI)]
        try:
            taken = asyncio.run(session.run(PLAN, chosen, Path(name), lambda line: None)).samples  # noqa: ARG005
        finally:
            os.sched_setaffinity(0, cores)  # the session keeps to one core
    for name, metric in _METRICS.items():
        for ours, theirs in zip(taken[BATON], taken[ASGI], strict=True):
            yield Sample(name, metric.of(ours) / metric.of(theirs))


def _connector() -> Iterator[Sample]:
    with workplace("quick", prepare=connector.PREPARE) as (server, folder):
        yield from asyncio.run(connector.measure(server, folder))


def _first_token() -> Iterator[Sample]:
    with workplace("quick") as (server, folder):
        yield from asyncio.run(first_token.measure(server, folder))


PARTS: Final[dict[str, Part]] = {"proxy": _proxy, "connector": _connector, "first-token": _first_token}


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python -m benchmarks.quick", description=__doc__)
    add = made.add_argument
    add("--parts", nargs="+", choices=list(PARTS), default=list(PARTS))
    add("--baseline", type=Path, default=BASELINE, metavar="FILE")
    add("--write-baseline", action="store_true", help="store what was measured there, if all of it was")
    return made


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parser().parse_args(argv)
    return harness.run("bench-quick", lambda: _measure(arguments))


def _measure(arguments: argparse.Namespace) -> int:
    if arguments.write_baseline and set(arguments.parts) != set(PARTS):
        raise UsageError("a baseline holds all parts: --write-baseline does not go with --parts")
    samples: list[Sample] = []
    began, meter = time.monotonic(), OtherCpu(os.getpid())
    failed = [reason for name in arguments.parts for reason in _take(name, samples)]
    found, other_cores = figures(samples), meter.other_cores()
    baseline, about = read(arguments.baseline)
    if set(arguments.parts) != set(PARTS):  # parts that were not to be measured are not missed
        baseline = {name: baseline[name] for name in found if name in baseline}
    print(f"Ratios, median (min–max) over rounds; baseline: {about}. A person decides what a difference means.\n")
    print(table(beside(baseline, found)))
    print(f"\n{time.monotonic() - began:.0f} s; other processes used {other_cores:.2f} cores")
    if failed:
        print("\n".join(f"bench-quick: {each}" for each in failed), file=sys.stderr)
        return 1
    if arguments.write_baseline:
        write(arguments.baseline, found, other_cores)
    return 0


def _take(name: str, samples: list[Sample]) -> list[str]:
    print(f"measuring: {name}", file=sys.stderr, flush=True)
    try:
        samples.extend(PARTS[name]())
    except (*FAILURES, OSError) as exc:
        return [f"{name} could not be measured: {exc}"]
    return []


def read(path: Path) -> tuple[dict[str, Spread], str]:
    try:
        stored: Mapping[str, Any] = json.loads(path.read_text())
    except FileNotFoundError:
        return {}, "none"
    baseline = {name: Spread(**found) for name, found in stored["figures"].items()}
    return baseline, f"{stored['when']}, {stored['environment']['cpus']} cores"


def write(path: Path, found: Mapping[str, Spread], other_cores: float) -> None:
    plain: dict[str, Any] = {"when": now(), "environment": environment(), "other_cores": round(other_cores, 3)}
    plain["figures"] = {name: each._asdict() for name, each in found.items()}
    path.write_text(json.dumps(plain, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
