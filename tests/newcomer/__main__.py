"""`python -m tests.newcomer`: walk the README's commands on clean Debians, with nothing there but what the README names.

On the first release: with pip's cache empty, then with what pip has kept. On each other release, which brings another
Python: once. Exits 1 where the first walk takes too long.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from baton.contracts.configuration.load import load
from baton.deploy.serve import taken
from baton.deploy.stack import Stack, Surroundings, plan
from tests.newcomer.debian import MachineError
from tests.newcomer.figures import table, total_s
from tests.newcomer.journey import JourneyError, walk
from tests.newcomer.machines import Machine
from tests.newcomer.readme import README, commands

PROMISED_S: Final = 360.0  # to the first token, with an empty cache
WALKS: Final = ("nothing there yet", "a second clone")
RELEASES: Final = ("bookworm", "trixie")  # Debian's: Python 3.11 and 3.13


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--walks", type=int, choices=(1, 2), default=2, help="1: with the empty cache alone")
    parser.add_argument("--releases", nargs="+", default=RELEASES, help=f"Debian's (default: {' '.join(RELEASES)})")
    parser.add_argument(
        "--folder", type=Path, help="make the folder for it there: 6 GB (default: where temporary files are)"
    )
    parser.add_argument("--set", nargs="+", default=[], metavar="BATON_…=VALUE", help="where ports are taken by others")
    options = parser.parse_args()
    settings = dict(each.split("=", 1) for each in options.set)
    try:
        return _walks(options, settings)
    except (JourneyError, MachineError, subprocess.SubprocessError) as exc:
        print(f"newcomer: {exc}", file=sys.stderr)
        return 1


def _walks(options: argparse.Namespace, settings: Mapping[str, str]) -> int:
    promised = commands(README.read_text())
    if busy := list(taken(_stack(settings))):
        raise JourneyError("\n".join(busy))
    done = []
    for number, release in enumerate(options.releases):
        with _machine(release, options.folder, settings) as machine:
            for title in [release] if number else WALKS[: options.walks]:
                _say(f"{title}:")
                done.append((title, walk(machine, promised, _say)))
    _say(f"\n{table(done)}")
    return 0 if total_s(done[0][1].first) < PROMISED_S else 1


@contextmanager
def _machine(release: str, folder: Path | None, settings: Mapping[str, str]) -> Iterator[Machine]:
    """Make a clean Debian of this release, with what the README takes for granted."""
    with (
        tempfile.TemporaryDirectory(prefix="baton-newcomer-", dir=folder) as name,
        Machine(Path(name), settings, release) as machine,
    ):
        began_s = time.monotonic()
        machine.prepare()
        _say(f"what the README takes for granted: {time.monotonic() - began_s:.1f} s, not counted")
        yield machine


def _stack(settings: Mapping[str, str]) -> Stack:
    """What the commands start in the end; a clean root has this machine's network."""
    config = load({"serve.prefill": "2", "serve.decode": "2"}, settings, None).config
    return plan(config, Surroundings(file=None, secret_file=Path("secret")))


def _say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
