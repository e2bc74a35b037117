"""`python -m baton.deploy.release`: sdist, wheel and their digests in `dist`, built twice from the commit that is checked out."""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
BUILD_S: Final = 120.0
FILES_OF_OTHERS: Final = 0o022  # the usual umask; the bytes must not depend on it
UMASKS: Final = (FILES_OF_OTHERS, 0o077)
DIGESTS: Final = "SHA256SUMS"
_HEADING: Final = re.compile(r"^## \[(?P<version>[^\]]+)\] – (?P<when>.+)$", re.MULTILINE)
_DATE: Final = re.compile(r"\d{4}-\d{2}-\d{2}")
UNRELEASED: Final = "unreleased"


def version_of(pyproject: str) -> str:
    return str(tomllib.loads(pyproject)["project"]["version"])


def objections(*, version: str, changelog: str, tags: Sequence[str], changed: Sequence[str]) -> list[str]:
    """Return sentences; nothing if the commit can be built. `changed`: files that differ from it."""
    releases = [tag for tag in tags if tag.startswith("v")]
    changes = [f"these are not in the commit: {', '.join(changed)}"] if changed else []
    wrong = [f"the commit is tagged {tag}, and its version is {version}" for tag in releases if tag != f"v{version}"]
    return [*changes, *_of_changelog(version, changelog, tagged=bool(releases)), *wrong]


def _of_changelog(version: str, changelog: str, *, tagged: bool) -> Iterator[str]:
    sections = {found["version"]: found["when"] for found in _HEADING.finditer(changelog)}
    if version not in sections:
        yield f"CHANGELOG.md has no section [{version}]"
        return
    if next(iter(sections)) != version:
        yield f"CHANGELOG.md begins with {next(iter(sections))}, and the version is {version}"
    when = sections[version]
    if when != UNRELEASED and not _DATE.fullmatch(when):
        yield f"CHANGELOG.md dates {version} with {when!r}: it is a day (2027-01-31), or {UNRELEASED!r}"
    if tagged and when == UNRELEASED:
        yield f"the commit is tagged, and CHANGELOG.md says that {version} is {UNRELEASED}"


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

    All packed files bear the time `epoch_s`. Raises `SubprocessError`, with what was said: the build back end failed.
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


def _run(command: list[str], folder: Path, environ: dict[str, str] | None = None, umask: int = -1) -> str:
    done = subprocess.run(
        command, cwd=folder, env=environ, umask=umask, capture_output=True, text=True, check=False, timeout=BUILD_S
    )
    if done.returncode != 0:
        raise subprocess.SubprocessError(
            f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
        )
    return done.stdout


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m baton.deploy.release", description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="what is there is replaced")
    out = parser.parse_args().out
    try:
        problems = _objections()
        if not problems:
            problems = _release(out)
    except (subprocess.SubprocessError, OSError) as exc:
        problems = [str(exc)]
    for problem in problems:
        print(f"release: {problem}", file=sys.stderr)
    return 1 if problems else 0


def _objections() -> list[str]:
    tags = _git("tag", "--points-at", "HEAD").split()
    version = version_of((ROOT / "pyproject.toml").read_text())
    found = objections(
        version=version,
        changelog=(ROOT / "CHANGELOG.md").read_text(),
        tags=tags,
        changed=[line[3:] for line in _git("status", "--porcelain").splitlines()],
    )
    if not found and f"v{version}" not in tags:
        print(f"no release yet: this commit is not tagged v{version}")
    return found


def _release(out: Path) -> list[str]:
    """Build twice, in folders of other names and with other rights; keep the first, if the second is the same."""
    epoch_s = int(_git("log", "-1", "--format=%ct"))
    with tempfile.TemporaryDirectory(prefix="baton-release-") as name:
        first, second = (_built(Path(name, f"build-{umask:o}"), epoch_s, umask) for umask in UMASKS)
        if first.digests() != second.digests():
            return [f"two builds of one commit differ: {first.digests()} and {second.digests()}"]
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir(parents=True)
        for file in (first.sdist, first.wheel):
            shutil.copy(file, out)
        lines = [f"{digest}  {name}" for name, digest in first.digests().items()]
    (out / DIGESTS).write_text("\n".join(lines) + "\n")
    print(*lines, sep="\n")
    return []


def _built(folder: Path, epoch_s: int, umask: int) -> Built:
    folder.mkdir()
    export(ROOT, folder / "commit")
    return build(folder / "commit", folder / "out", epoch_s=epoch_s, umask=umask)


def _git(*arguments: str) -> str:
    return _run(["git", *arguments], ROOT)


if __name__ == "__main__":
    sys.exit(main())
