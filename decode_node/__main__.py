"""`python -m baton.decode_node`: run a decode node."""

import sys
from collections.abc import Sequence

from baton.node import command


def main(argv: Sequence[str] | None = None) -> int:
    """Run a decode node until it is told to stop; return the exit status."""
    return command.main("decode", argv)


if __name__ == "__main__":
    sys.exit(main())
