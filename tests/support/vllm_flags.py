"""Writes `node/startup/vllm_flags.json`: the flags of vLLM's server, by version. `python -m tests.support.vllm_flags [ROOT …]`.

Each ROOT is a folder that a wheel of another version was unpacked into; without one, the installed version is read again.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from baton.node.startup.vllm_flags import FILE, read_flags

READ = """
import json
import vllm.platforms
from vllm.platforms.cpu import CpuPlatform
vllm.platforms._current_platform = CpuPlatform()  # a wheel for another device names none on this machine
import vllm
from baton.node.follower import _parser
flags = sorted({flag for action in _parser()._actions for flag in action.option_strings})
print(json.dumps([vllm.__version__, flags]))
"""


def read_parser(root: Path | None = None) -> tuple[str, list[str]]:
    """Return the version of a vLLM, `major.minor`, and every flag that its server's parser knows; takes seconds."""
    paths = [str(root)] if root else []
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([*paths, str(FILE.parents[2])])}
    run = subprocess.run(
        [sys.executable, "-c", READ], env=environ, capture_output=True, text=True, timeout=600, check=True
    )
    version, flags = json.loads(run.stdout.strip().splitlines()[-1])
    return ".".join(str(version).split(".")[:2]), flags


def write(flags: Mapping[str, Iterable[str]]) -> None:
    """Write the file: a line for each flag, with the versions that have it unless all of them do."""
    every = sorted({flag for names in flags.values() for flag in names})
    having = {flag: [version for version in sorted(flags) if flag in flags[version]] for flag in every}
    rows = (f" {json.dumps(flag)}: {json.dumps(has if len(has) < len(flags) else [])}" for flag, has in having.items())
    FILE.write_text("{\n" + ",\n".join(rows) + "\n}\n")


def main(roots: list[str]) -> None:
    """Read the versions named and write the file."""
    known = read_flags()
    read = dict(read_parser(Path(root)) for root in roots) if roots else dict([read_parser()])
    write(known | read)


if __name__ == "__main__":
    main(sys.argv[1:])
