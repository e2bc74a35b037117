"""`python -m tests.mutants`: put each fault into a copy of the tree and run the tests that must notice it. Exits 1 if some do not.

`--draw 40 --seed 7` takes faults at random instead of the committed ones. Some of those change nothing that a user could
see: read each that is not noticed. For a quiet machine: a test that takes longer than a minute counts as failed.

Importing vLLM takes longer than most of these tests, so they run in forks of one process that has it, one fork per core.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Final

from baton.deploy.forkserver import ForkServer
from tests.mutants import in_fork
from tests.mutants.draw import Drawn, draw
from tests.mutants.mutations import MUTATIONS, Mutation

ROOT: Final = Path(__file__).parents[2]
TIMEOUT_S: Final = (180.0, 1800.0)  # of a stage; a fault that makes its tests hang is noticed, too
INTERRUPTED: Final = 2  # pytest's status when a module of tests cannot be imported
CORES: Final = len(os.sched_getaffinity(0))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("words", nargs="*", help="only mutations whose file or text has one of these")
    parser.add_argument("--draw", type=int, default=0, help="so many random faults, instead of the committed ones")
    parser.add_argument("--seed", type=int, default=0, help="of the draw")
    options = parser.parse_args()
    words = options.words
    chosen: Sequence[Mutation | Drawn] = draw(ROOT, options.draw, options.seed, words) if options.draw else MUTATIONS
    chosen = [each for each in chosen if not words or any(word in f"{each.file} {each.old}" for word in words)]
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
        print(f"  not noticed: {_described(each)}")
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


def _is_noticed(forks: ForkServer, trees: SimpleQueue[Path], mutation: Mutation | Drawn) -> bool:
    tree = trees.get()
    path = tree / mutation.file
    text = path.read_text()
    path.write_text(mutation.applied_to(text))
    began_s = time.monotonic()
    try:
        stages = zip(mutation.stages, TIMEOUT_S, strict=False)
        may_break_imports = isinstance(mutation, Drawn)
        noticed = any(
            _tests_fail(forks, tree, tests, timeout_s, may_break_imports=may_break_imports)
            for tests, timeout_s in stages
        )
    finally:
        path.write_text(text)
        trees.put(tree)
    word = "noticed" if noticed else "NOT NOTICED"
    print(f"{word:<12}{time.monotonic() - began_s:5.1f} s  {_described(mutation)}", flush=True)
    return noticed


def _tests_fail(
    forks: ForkServer, tree: Path, tests: Sequence[str], timeout_s: float, *, may_break_imports: bool
) -> bool:
    output = tree / "output.txt"
    output.unlink(missing_ok=True)
    run = forks.spawn(
        f"{in_fork.__name__}:{in_fork.run_tests.__name__}",
        kwargs={"tree": str(tree), "tests": list(tests)},
        env={"PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": str(tree)},
        log=output,
    )
    try:
        status = run.wait(timeout_s)
    except subprocess.TimeoutExpired:
        run.kill()
        return True
    if status not in ((0, 1, INTERRUPTED) if may_break_imports else (0, 1)):
        raise RuntimeError(f"pytest ended with {status} on {tests}: {output.read_text()[-4000:]}")
    return status != 0


def _described(mutation: Mutation | Drawn) -> str:
    where = f"{mutation.file}:{mutation.line}" if isinstance(mutation, Drawn) else mutation.file
    return f"{where}: {mutation.old.strip()!r} → {mutation.new.strip()!r}"


if __name__ == "__main__":
    sys.exit(main())
