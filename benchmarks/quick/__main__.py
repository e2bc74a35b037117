"""`python -m benchmarks.quick`: ratios beside a stored baseline. Exits 0, unless something could not be measured."""

import argparse
import contextlib
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from baton.deploy.environment import zygote_environment
from baton.deploy.forkserver import VLLM_PRELOAD, ForkServer, ForkServerError
from baton.loadtest.client.wire import WireError
from baton.loadtest.errors import LoadtestError
from baton.loadtest.run.environment import environment, now
from benchmarks.microbench.children import PREPARE, Children, PartError
from benchmarks.overlap.processes import RigError
from benchmarks.overlap.session import MeasureError
from benchmarks.proxy.figures import Spread
from benchmarks.quick import connector, first_token, proxy
from benchmarks.quick.ratios import Sample, beside, figures, from_plain, table, to_plain
from benchmarks.usage import OtherCpu

BASELINE: Final = Path(__file__).resolve().parents[2] / "docs" / "benchmarks" / "quick.json"
_FAILURES: Final = (PartError, RigError, ForkServerError, MeasureError, LoadtestError, WireError, OSError, TimeoutError)
Part = Callable[[Path], Iterator[Sample]]


def _connector(folder: Path) -> Iterator[Sample]:
    with _forkserver(folder, PREPARE) as server:
        yield from connector.measure(Children(server, folder))


def _first_token(folder: Path) -> Iterator[Sample]:
    with _forkserver(folder, VLLM_PRELOAD) as server:
        yield from first_token.measure(server, folder)


PARTS: Final[dict[str, Part]] = {"proxy": proxy.measure, "connector": _connector, "first-token": _first_token}


def _forkserver(folder: Path, prepare: str) -> ForkServer:
    environ = zygote_environment(os.environ, offline=True)
    return ForkServer(prepare=prepare, log=folder / "zygote.log", environ=environ)


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    made = argparse.ArgumentParser(prog="python -m benchmarks.quick", description=__doc__)
    add = made.add_argument
    add("--parts", nargs="+", choices=list(PARTS), default=list(PARTS))
    add("--baseline", type=Path, default=BASELINE, metavar="FILE")
    add("--write-baseline", action="store_true", help="store what was measured there, if all of it was")
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; return the process's exit status."""
    arguments = parser().parse_args(argv)
    if arguments.write_baseline and set(arguments.parts) != set(PARTS):
        print("bench-quick: a baseline holds all parts: --write-baseline does not go with --parts", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    samples: list[Sample] = []
    began, meter = time.monotonic(), OtherCpu(os.getpid())
    meter.restart()
    try:
        failed = [reason for name in arguments.parts for reason in _take(name, samples)]
    except KeyboardInterrupt:
        return 130
    found, other_cores = figures(samples), meter.other_cores()
    _show(arguments, found)
    print(f"\n{time.monotonic() - began:.0f} s; other processes used {other_cores:.2f} cores")
    if failed:
        print("\n".join(f"bench-quick: {each}" for each in failed), file=sys.stderr)
        return 1
    if arguments.write_baseline:
        write(arguments.baseline, found, other_cores)
    return 0


def _show(arguments: argparse.Namespace, found: Mapping[str, Spread]) -> None:
    """Print the table; what nobody wanted to have measured is not missed."""
    baseline, about = read(arguments.baseline)
    if set(arguments.parts) != set(PARTS):
        baseline = {name: baseline[name] for name in found if name in baseline}
    print(f"Ratios, median (min–max) over rounds; baseline: {about}. A person decides what a difference means.\n")
    print(table(beside(baseline, found)))


def _take(name: str, samples: list[Sample]) -> list[str]:
    """Measure a part; return why it could not be measured."""
    print(f"measuring: {name}", file=sys.stderr, flush=True)
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="baton-quick-")))
        try:
            samples.extend(PARTS[name](folder))
        except _FAILURES as exc:
            return [f"{name} could not be measured: {exc}"]
    return []


def read(path: Path) -> tuple[dict[str, Spread], str]:
    """Return the baseline's figures, and a few words about it."""
    try:
        stored: Mapping[str, Any] = json.loads(path.read_text())
    except FileNotFoundError:
        return {}, "none"
    return from_plain(stored["figures"]), f"{stored['when']}, {stored['environment']['cpus']} cores"


def write(path: Path, found: Mapping[str, Spread], other_cores: float) -> None:
    """Store a baseline."""
    about = {"when": now(), "environment": environment(), "other_cores": round(other_cores, 3)}
    path.write_text(json.dumps({**about, "figures": to_plain(found)}, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
