"""`python -m baton.loadtest`, also `baton loadtest`: measure a server, compare runs, check accuracy, plan how many nodes."""

import sys
from collections.abc import Sequence
from typing import Final

from baton.loadtest import words
from baton.loadtest.errors import LoadtestError, UsageError

COMMANDS: Final = {  # name → (module with `main(argv) -> int`, what it does)
    "run": ("baton.loadtest.run.command", "load a server and report what came of it"),
    "compare": ("baton.loadtest.compare.command", "say which metrics of two runs differ"),
    "eval": ("baton.loadtest.evaluate", "exact-match accuracy over a file in gsm8k's format"),
    "calibrate": ("baton.loadtest.plan.calibrate_command", "measure how fast a prefill and a decode node are"),
    "plan": ("baton.loadtest.plan.command", "say how many nodes a load needs, from a calibration"),
}
EXIT_FAILED: Final = 1


def main(argv: Sequence[str] | None = None) -> int:
    command, *rest = (sys.argv[1:] if argv is None else argv) or [""]
    try:
        return words.run_command("loadtest", COMMANDS, command, rest, broken_pipe=EXIT_FAILED)
    except LoadtestError as exc:
        print(f"loadtest {command}: {exc}", file=sys.stderr)
        return words.EXIT_USAGE if isinstance(exc, UsageError) else EXIT_FAILED


if __name__ == "__main__":
    sys.exit(main())
