"""`python -m tests.mutants`: put each fault into a copy of the tree and run the tests that must notice it. Exits 1 if some do not."""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from tests.mutants.mutations import MUTATIONS, Mutation

ROOT: Final = Path(__file__).parents[2]
TIMEOUT_S: Final = 180.0  # a fault may make a test hang: that is noticed, too


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("words", nargs="*", help="only mutations whose file or text has one of these")
    words = parser.parse_args().words
    chosen = [each for each in MUTATIONS if not words or any(word in f"{each.file} {each.old}" for word in words)]
    with tempfile.TemporaryDirectory(prefix="baton-mutants-") as folder:
        tree = copy_tree(Path(folder))
        unnoticed = [each for each in chosen if not _is_noticed(tree, each)]
    print(f"\n{len(chosen) - len(unnoticed)} of {len(chosen)} mutations are noticed")
    for each in unnoticed:
        print(f"  not noticed: {each.file}: {each.old.strip()!r} → {each.new.strip()!r}")
    return 1 if unnoticed else 0


def copy_tree(folder: Path) -> Path:
    """Copy what git tracks or would, links as links."""
    listed = subprocess.run(
        ["git", "ls-files", "-coz", "--exclude-standard"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout
    for name in filter(None, listed.split("\0")):
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).exists():
            shutil.copy2(ROOT / name, target, follow_symlinks=False)
    return folder


def _is_noticed(tree: Path, mutation: Mutation) -> bool:
    path = tree / mutation.file
    text = path.read_text()
    path.write_text(mutation.applied_to(text))
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *mutation.tests]
    environ = os.environ | {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": str(tree)}
    began_s = time.monotonic()
    try:
        done = subprocess.run(
            command, cwd=tree, env=environ, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
        status = done.returncode
        if status not in (0, 1):
            print(done.stdout[-2000:], done.stderr[-2000:], sep="\n", file=sys.stderr)
            raise RuntimeError(f"pytest ended with {status} on {mutation.file}: {mutation.old!r}")
    except subprocess.TimeoutExpired:
        status = 1
    finally:
        path.write_text(text)
    word = "noticed" if status else "NOT NOTICED"
    print(f"{word:<12}{time.monotonic() - began_s:5.1f} s  {mutation.file}: {mutation.new.strip()!r}", flush=True)
    return status != 0


if __name__ == "__main__":
    sys.exit(main())
