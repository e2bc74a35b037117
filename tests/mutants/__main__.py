"""`python -m tests.mutants`: put each fault into a copy of the tree and run the tests that must notice it. Exits 1 if some do not.

Importing vLLM takes longer than most of these tests, so they run in forks of one process that has it, one fork per core.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Final

from baton.deploy.forkserver import ForkServer
from tests.mutants import in_fork
from tests.mutants.mutations import MUTATIONS, Mutation

ROOT: Final = Path(__file__).parents[2]
TIMEOUT_S: Final = 180.0  # a fault may make a test hang: that is noticed, too
CORES: Final = len(os.sched_getaffinity(0))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("words", nargs="*", help="only mutations whose file or text has one of these")
    words = parser.parse_args().words
    chosen = [each for each in MUTATIONS if not words or any(word in f"{each.file} {each.old}" for word in words)]
    prepare = f"{in_fork.__name__}:{in_fork.import_libraries.__name__}"
    with tempfile.TemporaryDirectory(prefix="baton-mutants-") as name:
        folder = Path(name)
        trees: SimpleQueue[Path] = SimpleQueue()
        for core in range(CORES):
            trees.put(copy_tree(folder / str(core)))
        with ForkServer(prepare=prepare, log=folder / "libraries.log") as forks, ThreadPoolExecutor(CORES) as threads:
            noticed = list(threads.map(lambda each: _is_noticed(forks, trees, each), chosen))
    unnoticed = [each for each, is_noticed in zip(chosen, noticed, strict=True) if not is_noticed]
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


def _is_noticed(forks: ForkServer, trees: SimpleQueue[Path], mutation: Mutation) -> bool:
    tree = trees.get()
    path, output = tree / mutation.file, tree / "output.txt"
    text = path.read_text()
    path.write_text(mutation.applied_to(text))
    output.unlink(missing_ok=True)
    began_s = time.monotonic()
    try:
        tests = forks.spawn(
            f"{in_fork.__name__}:{in_fork.run_tests.__name__}",
            kwargs={"tree": str(tree), "tests": list(mutation.tests)},
            env={"PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": str(tree)},
            log=output,
        )
        try:
            status = tests.wait(TIMEOUT_S)
        except subprocess.TimeoutExpired:
            tests.kill()
            status = 1
        if status not in (0, 1):
            print(output.read_text()[-4000:], file=sys.stderr)
            raise RuntimeError(f"pytest ended with {status} on {mutation.file}: {mutation.old!r}")
    finally:
        path.write_text(text)
        trees.put(tree)
    word = "noticed" if status else "NOT NOTICED"
    print(f"{word:<12}{time.monotonic() - began_s:5.1f} s  {mutation.file}: {mutation.new.strip()!r}", flush=True)
    return status != 0


if __name__ == "__main__":
    sys.exit(main())
