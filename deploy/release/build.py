"""The commit's files → sdist → wheel, the same bytes each time."""

import os
import subprocess
import sys
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Final

BUILD_S: Final = 120.0
FILES_OF_OTHERS: Final = 0o022  # the usual umask; the bytes must not depend on it


class BuildError(Exception):
    """The files cannot be built; the message holds what was said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """A release's files."""

    sdist: Path
    wheel: Path

    def digests(self) -> dict[str, str]:
        return {file.name: sha256(file.read_bytes()).hexdigest() for file in (self.sdist, self.wheel)}


def export(repository: Path, folder: Path) -> None:
    """Write the files of the commit that is checked out, and nothing else, into an empty folder."""
    archive = folder.with_name(f"{folder.name}.tar")
    _run(["git", "archive", "--output", str(archive), "HEAD"], repository)
    unpack(archive, folder)
    archive.unlink()


def unpack(archive: Path, folder: Path) -> None:
    """Unpack what we packed, into a new folder. Python's own way wants a filter, which 3.11.2 (Debian's) does not have."""
    folder.mkdir()
    _run(["tar", "-xf", str(archive.absolute()), "--no-same-owner"], folder)


def build(source: Path, out: Path, *, epoch_s: int, umask: int = FILES_OF_OTHERS) -> Built:
    """Build the sdist from a folder, and the wheel from the sdist: what is missing there is missing here.

    All packed files bear the time `epoch_s`. Raises `BuildError`: the build back end failed.
    """
    out.mkdir(parents=True, exist_ok=True)
    sdist = _hatch("sdist", source, out, epoch_s, umask)
    unpacked = out / "unpacked"
    unpack(sdist, unpacked)
    wheel = _hatch("wheel", next(unpacked.iterdir()), out, epoch_s, umask)
    return Built(sdist=sdist, wheel=wheel)


def _hatch(target: str, source: Path, out: Path, epoch_s: int, umask: int) -> Path:
    folder = out / target
    environ = {**os.environ, "SOURCE_DATE_EPOCH": str(epoch_s)}
    _run([sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(folder)], source, environ, umask)
    return next(folder.iterdir())


def _run(command: list[str], folder: Path, environ: dict[str, str] | None = None, umask: int = -1) -> None:
    done = subprocess.run(
        command, cwd=folder, env=environ, umask=umask, capture_output=True, text=True, check=False, timeout=BUILD_S
    )
    if done.returncode != 0:
        raise BuildError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
