"""An earlier state of Baton, from the repository's history, in a folder of its own; and a fork server whose processes run it."""

import importlib.util
import os
import subprocess
import sys
import tarfile
from io import BytesIO
from pathlib import Path
from typing import Final, cast

from baton.deploy.forkserver import ROOT, ForkServer

# There is no tag yet. The last state before decision 55, in which nodes know nothing of first tokens, and the last one before decision 63, in which
# they know all of those and do not both send and receive.
RELEASES: Final = {"before first tokens": "e3f1487c", "before both ways": "143c108e"}


def unpack(commit: str, folder: Path) -> None:
    """Put the tree of a commit into a folder.

    Raises:
        subprocess.CalledProcessError: this clone does not have it.
    """
    git = ["git", "-C", str(ROOT), "archive", "--format=tar", commit]
    archive = subprocess.run(git, check=True, capture_output=True).stdout
    with tarfile.open(fileobj=BytesIO(archive)) as tar:
        tar.extractall(folder, filter="data")


def fork_server(tree: Path, log: Path) -> ForkServer:
    """Return that tree's own fork server, which has not been started: both of its ends are of one release."""
    spec = importlib.util.spec_from_file_location(f"forkserver_of_{tree.name}", tree / "deploy" / "forkserver.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    # The directory in which the tests run is not to come before that tree.
    environ = {**os.environ, "PYTHONSAFEPATH": "1", "TORCHDYNAMO_DISABLE": "1", "VLLM_LOGGING_LEVEL": "WARNING"}
    return cast("ForkServer", module.ForkServer(environ=environ, log=log))
