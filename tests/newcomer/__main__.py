"""`python -m tests.newcomer`: walk with an empty cache of pip's, again with what pip has kept, then through three hardships.

Exits 1 where it takes too long.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from baton.contracts.configuration.load import load
from baton.deploy.ports import taken
from baton.deploy.stack import Stack, Surroundings, plan
from tests.newcomer.figures import table, total_s
from tests.newcomer.hardships import walk_hardships
from tests.newcomer.journey import JourneyError, walk
from tests.newcomer.machines import Clean, Here
from tests.newcomer.readme import README, commands
from tests.support.images.machine import MachineError

PROMISED_S: Final = 360.0  # to the first token, with an empty cache
WALKS: Final = ("nothing there yet", "a second clone")


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--machine", choices=("clean", "here"), default="clean", help="a clean Debian, or this one")
    parser.add_argument("--walks", type=int, choices=(1, 2), default=2, help="1: with the empty cache alone")
    parser.add_argument(
        "--folder", type=Path, help="make the folder for it there: 6 GB (default: where temporary files are)"
    )
    parser.add_argument("--set", nargs="+", default=[], metavar="BATON_…=VALUE", help="where ports are taken by others")
    options = parser.parse_args()
    settings = dict(each.split("=", 1) for each in options.set)
    try:
        return _walks(options.machine, options.walks, options.folder, settings)
    except (JourneyError, MachineError, subprocess.SubprocessError) as exc:
        print(f"newcomer: {exc}", file=sys.stderr)
        return 1


def _walks(where: str, count: int, folder: Path | None, settings: Mapping[str, str]) -> int:
    promised = commands(README.read_text())
    if busy := list(taken(_stack(settings))):
        raise JourneyError("\n".join(busy))
    place = Clean if where == "clean" else Here
    with (
        tempfile.TemporaryDirectory(prefix="baton-newcomer-", dir=folder) as name,
        place(Path(name), settings) as machine,
    ):
        began_s = time.monotonic()
        machine.prepare()
        _say(f"what the README takes for granted: {time.monotonic() - began_s:.1f} s, not counted")
        done = []
        for title in WALKS[:count]:
            _say(f"{title}:")
            done.append((title, walk(machine, promised, _say)))
        for step in walk_hardships(machine, promised, _say):
            _say(f"{step.name}: {step.seconds:.0f} s")
    _say(f"\n{table(done)}")
    return 0 if total_s(done[0][1].first) < PROMISED_S else 1


def _stack(settings: Mapping[str, str]) -> Stack:
    """What the commands start in the end; a clean root has this machine's network."""
    config = load({"serve.prefill": "2", "serve.decode": "2"}, settings, None).config
    return plan(config, Surroundings(file=None, secret_file=Path("secret")))


def _say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
