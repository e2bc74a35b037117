"""`python -m baton.deploy.release`: sdist, wheel and their digests in `dist`, built twice from the commit that is checked out."""

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from baton.deploy.release.build import FILES_OF_OTHERS, BuildError, Built, build, export
from baton.deploy.release.objections import objections, version_of

ROOT: Final = Path(__file__).resolve().parents[2]
UMASKS: Final = (FILES_OF_OTHERS, 0o077)
DIGESTS: Final = "SHA256SUMS"
GIT_S: Final = 60.0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m baton.deploy.release", description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="what is there is replaced")
    out = parser.parse_args().out
    try:
        problems = _objections()
        if not problems:
            problems = _release(out)
    except (BuildError, subprocess.SubprocessError, OSError) as exc:
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
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True, timeout=GIT_S)
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
