"""`python -m benchmarks.routing trace` and `… fleet`: how requests are spread, in simulated time; no server runs."""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from baton.loadtest.errors import UsageError
from baton.loadtest.run.environment import environment, now
from baton.loadtest.traffic.trace_replay import CONVERSATION
from baton.proxy.nodes.health_probe import STALE_S
from benchmarks import harness
from benchmarks.routing.experiments import Row, run_fleet, run_trace


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python -m benchmarks.routing", description=__doc__)
    parts = made.add_subparsers(dest="part", required=True)
    trace = parts.add_parser("trace", help="which part of a trace's tokens do few nodes find in their caches?")
    trace.add_argument(
        "--cache-blocks", type=int, nargs="+", default=[1000, 2000, 4000], help="of 512 tokens, per node"
    )
    trace.add_argument(
        "--runs", type=int, default=5, help="each with other arrivals within the seconds that times stand for"
    )
    fleet = parts.add_parser(
        "fleet", help="how even is the work of many nodes behind proxies that know little of each other?"
    )
    fleet.add_argument("--proxies", type=int, default=8)
    fleet.add_argument("--utilisation", type=float, default=0.8)
    fleet.add_argument("--seconds", type=float, default=80.0, help="of which the second half counts")
    for part, nodes in ((trace, 4), (fleet, 1000)):
        part.add_argument("file", type=Path, nargs="?", default=CONVERSATION, help="a trace in Mooncake's format")
        part.add_argument("--nodes", type=int, default=nodes)
        part.add_argument("--tokens-per-s", type=float, default=12_000.0, help="that a node computes")
        part.add_argument("--probe-interval-s", type=float, default=1.0)
        part.add_argument("--seed", type=int, default=1)
        part.add_argument("--out", type=Path, metavar="FILE", help="write the figures as JSON")
    return made


def main(argv: Sequence[str] | None = None) -> int:
    given = parser().parse_args(argv)

    def take() -> int:
        if min(value for value in vars(given).values() if isinstance(value, int | float)) <= 0:
            raise UsageError("all numbers are above 0")
        if given.probe_interval_s > STALE_S:
            raise UsageError(f"--probe-interval-s is at most {STALE_S:g}: a proxy forgets older answers")
        rows = (run_trace if given.part == "trace" else run_fleet)(given)
        print(table(rows))
        if given.out:
            arguments = {name: str(value) if isinstance(value, Path) else value for name, value in vars(given).items()}
            about = {"when": now(), "environment": environment(), "arguments": {**arguments, "file": given.file.name}}
            given.out.write_text(json.dumps({**about, "rows": rows}, indent=1) + "\n")
        return 0

    return harness.run("routing", take, OSError)


def table(rows: Sequence[Row]) -> str:
    head = list(rows[0])
    cells = [[row.get(name, "–") for name in head] for row in rows]
    return harness.markdown_table(
        head, [[f"{x:.3f}" if isinstance(x, float) else str(x) for x in row] for row in cells]
    )


if __name__ == "__main__":
    sys.exit(main())
