"""`python -m benchmarks.proxy`: Baton's proxy beside others, in one session."""

import argparse
import json
import subprocess
import sys
import tempfile
import venv
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import uvloop

from baton.loadtest.errors import UsageError
from baton.loadtest.run.environment import environment, now
from benchmarks import harness
from benchmarks.proxy import report, session
from benchmarks.proxy.load import SHORT
from benchmarks.proxy.stage import Plan
from benchmarks.proxy.subjects import DEFAULT_PEERS_DIR, PEERS, Missing, Subject, subjects

_BEGIN = "<!-- figures -->"
_END = "<!-- end of figures -->"
INSTALL_TIMEOUT_S = 600.0


def main(argv: Sequence[str] | None = None) -> int:
    return harness.run("proxy_bench", lambda: _measure(_parser().parse_args(argv)), OSError)


def _measure(arguments: argparse.Namespace) -> int:
    plan = _plan(arguments)
    if arguments.install_peers:
        _install_peers(arguments.peers)
    chosen, missing = _chosen(arguments)
    about = {"when": now(), **environment()}
    with tempfile.TemporaryDirectory(prefix="proxy-bench-") as folder:
        work = session.run(plan, chosen, Path(folder), lambda line: print(line, file=sys.stderr))
        result = uvloop.run(work)
    text = report.markdown(result, missing, about)
    print(text)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(report.to_plain(result, missing, about), indent=1) + "\n")
    if arguments.markdown is not None:
        put(text, arguments.markdown)
    return 0


def _chosen(arguments: argparse.Namespace) -> tuple[list[Subject], list[Missing]]:
    found, missing = subjects(arguments.peers)
    if arguments.only:
        unknown = set(arguments.only) - {one.name for one in found} - {one.name for one in missing}
        if unknown:
            raise UsageError(f"there is no subject {', '.join(sorted(unknown))}")
        found = [subject for subject in found if subject.name in arguments.only]
        missing = [one for one in missing if one.name in arguments.only]
    if not found:
        raise UsageError("nothing is left to be measured")
    return found, missing


def _install_peers(folder: Path) -> None:
    """Install the peers into an environment of their own; one that cannot be had is left out of the report's tables."""
    if not (folder / "bin" / "python").exists():
        venv.create(folder, with_pip=True)
    for name, version in PEERS.items():
        if not (folder / "bin" / name).exists():
            command = [str(folder / "bin" / "python"), "-m", "pip", "install", "-q", f"{name}=={version}"]
            try:
                subprocess.run(command, check=True, timeout=INSTALL_TIMEOUT_S)
            except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as exc:
                print(f"proxy_bench: {name} cannot be installed: {exc}", file=sys.stderr)


def put(text: str, path: Path) -> None:
    """Write the figures between their two marks, or a file of nothing else; what people wrote around them stays."""
    old = path.read_text() if path.exists() else ""
    before, begin, rest = old.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    marked = f"{_BEGIN}\n\n{text}\n{_END}"
    path.write_text(before + marked + after if begin and end else f"# The proxy beside others\n\n{marked}\n")


def _plan(arguments: argparse.Namespace) -> Plan:
    given: dict[str, Any] = {field.name: getattr(arguments, field.name) for field in fields(Plan)}
    counts = ("rounds", "short_requests", "at_once", "single_requests", "streams", "starts")
    if min(given[name] for name in counts) < 1:
        raise UsageError("all numbers are at least 1")
    if given["tokens"] <= SHORT or given["itl_ms"] <= 0:
        raise UsageError(f"--tokens is at least {SHORT + 1}, --itl-ms above 0")
    return Plan(**given)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.proxy", description="What a proxy costs")
    for field in fields(Plan):
        parser.add_argument(f"--{field.name.replace('_', '-')}", type=type(field.default), default=field.default)
    parser.add_argument("--only", nargs="+", metavar="SUBJECT", help="measure these alone")
    parser.add_argument("--peers", type=Path, default=DEFAULT_PEERS_DIR, help="environment that holds the peers")
    parser.add_argument("--install-peers", action="store_true", help="make it, with pip, where something is missing")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", type=Path)
    return parser


if __name__ == "__main__":
    sys.exit(main())
