"""`python -m baton.prefill_node`: run a prefill node."""

import sys
from collections.abc import Sequence

from baton.node import command


def main(argv: Sequence[str] | None = None) -> int:
    """Run a prefill node until it is told to stop; return the exit status."""
    return command.main("prefill", argv)


if __name__ == "__main__":
    sys.exit(main())
