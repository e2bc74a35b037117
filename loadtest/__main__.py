"""`python -m baton.loadtest`, also `baton loadtest`: measure a server, compare runs, check accuracy, plan how many nodes."""

import importlib
import os
import sys
from collections.abc import Sequence
from typing import Final

from baton.loadtest.errors import RunError, UsageError

COMMANDS: Final = {  # name → (module with `main(argv) -> int`, what it does)
    "run": ("baton.loadtest.run.command", "load a server and report what came of it"),
    "compare": ("baton.loadtest.compare.command", "say which metrics of two runs differ"),
    "eval": ("baton.loadtest.evaluate", "exact-match accuracy over a file in gsm8k's format"),
    "calibrate": ("baton.loadtest.plan.calibrate_command", "measure how fast a prefill and a decode node are"),
    "plan": ("baton.loadtest.plan.command", "say how many nodes a load needs, from a calibration"),
}
EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
EXIT_INTERRUPTED: Final = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status; its module is imported only then."""
    command, *rest = (sys.argv[1:] if argv is None else argv) or [""]
    if command not in COMMANDS:
        asked = command in ("-h", "--help", "help")
        print(_usage(command if not asked else ""), file=sys.stdout if asked else sys.stderr)
        return 0 if asked else EXIT_USAGE
    try:
        status: int = importlib.import_module(COMMANDS[command][0]).main(rest)
        sys.stdout.flush()
    except UsageError as exc:
        return _complain(command, exc, EXIT_USAGE)
    except RunError as exc:
        return _complain(command, exc, EXIT_FAILED)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILED
    return status


def _complain(command: str, error: Exception, status: int) -> int:
    print(f"loadtest {command}: {error}", file=sys.stderr)
    return status


def _usage(wrong: str) -> str:
    lines = [f"loadtest: there is no command {wrong!r}\n"] if wrong else []
    lines.append("usage: loadtest COMMAND …   (`loadtest COMMAND --help` tells more)\n")
    lines += [f"  {name:<9} {purpose}" for name, (_, purpose) in COMMANDS.items()]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
