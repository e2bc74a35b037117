"""`baton secret`: files with a fresh secret each, where there are none: the cluster's secret, the admin API's token."""

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from baton.contracts.secret import generate_secret

EXIT_FAILED = 2


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="baton secret", description="Make files that only their owner can read, with a fresh secret each."
    )
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="left as it is if it is there")
    for file in parser.parse_args(argv).files:
        try:
            print(f"{file}: {'made' if make(file) else 'was there'}")
        except OSError as exc:
            print(f"baton secret: cannot make {file}: {exc.strerror}", file=sys.stderr)
            return EXIT_FAILED
    return 0


def make(file: Path) -> bool:
    """Make a file that is whole from the moment it is there; return False if there was one."""
    if file.exists():
        return False
    handle, written = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")  # mode 0600
    try:
        with os.fdopen(handle, "w") as text:
            text.write(generate_secret() + "\n")
        with suppress(FileExistsError):
            os.link(written, file)  # unlike a rename, it does not replace what another process has made since
            return True
    finally:
        Path(written).unlink()
    return False
