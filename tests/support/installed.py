"""Baton as its users have it: a wheel, installed into an environment of its own, in which nothing leads back to this tree.

The heavy packages are those of the environment that runs the tests. Its folder comes behind the wheel's, as plain paths: `.pth`
files in it, such as that of an editable installation, do not count there.
"""

import os
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

INSTALL_S: Final = 120.0
OF_THE_TREE: Final = ("BATON_", "PYTHON", "VIRTUAL_ENV", "COVERAGE_")  # what variables begin with that could lead back


@dataclass(frozen=True, slots=True, kw_only=True)
class Installed:
    folder: Path
    site: Path  # its packages

    @property
    def baton(self) -> str:
        return str(self.folder / "bin" / "baton")

    @property
    def environ(self) -> Mapping[str, str]:
        """What it runs with: this environment, without what belongs to the tree."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(OF_THE_TREE)}
        return {**kept, "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}"}


def install(wheel: Path, folder: Path) -> Installed:
    """Make an environment and install a wheel into it, without bytecode: what is run writes its own.

    Raises:
        subprocess.CalledProcessError: pip refused the wheel.
    """
    _run([sys.executable, "-m", "venv", "--without-pip", str(folder)])
    options = ["-qq", "--no-input", "--disable-pip-version-check", "--no-index", "--no-deps", "--no-compile"]
    _run([sys.executable, "-m", "pip", "--python", str(folder), "install", *options, str(wheel)])
    site = next((folder / "lib").glob("python3.*")) / "site-packages"
    paths = dict.fromkeys(sysconfig.get_path(kind) for kind in ("purelib", "platlib"))
    (site / "heavy.pth").write_text("".join(f"{path}\n" for path in paths))
    return Installed(folder=folder, site=site)


def _run(command: list[str]) -> None:
    subprocess.run(command, check=True, timeout=INSTALL_S)
