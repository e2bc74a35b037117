"""What this machine lends to a clean root: a Debian to begin with, and its own way to the package registries.

Pip's settings go in as environment variables, apt's as a file that a variable names; folders and certificates that they name
appear in the root, for reading, while a command runs.
"""

import ast
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

LENT: Final = "/tmp/lent"  # in the root
APT_SETTINGS: Final = f"{LENT}/apt-settings"
NAME_SERVERS: Final = "/etc/resolv.conf"
DEBOOTSTRAP_S: Final = 300
_PATH: Final = re.compile(r"(?:file://)?(/[^\s]+)")


class MachineError(Exception):
    """There can be no clean root here; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loan:
    """What a command gets in a root."""

    environ: Mapping[str, str]
    folders: Mapping[str, str]  # path in the root → path here


def debian(release: str) -> Path:
    """Return a root with Debian's smallest system, made if it is not there.

    Raises:
        MachineError: it cannot be made.
    """
    if os.geteuid() != 0:
        raise MachineError("only root can make a root of its own: run this as root, or in a privileged container")
    if shutil.which("debootstrap") is None:
        raise MachineError("debootstrap is missing: apt-get install debootstrap")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "baton"
    root = cache / f"debian-{release}"
    if not root.exists():
        making = root.with_name(f"{root.name}.{os.getpid()}")
        making.mkdir(parents=True)
        try:
            command = ["debootstrap", "--variant=minbase", release, str(making)]
            subprocess.run(command, check=True, timeout=DEBOOTSTRAP_S, stdout=subprocess.DEVNULL)
            making.rename(root)
        except subprocess.CalledProcessError as exc:
            raise MachineError(f"debootstrap failed with {exc.returncode}") from exc
        finally:
            shutil.rmtree(making, ignore_errors=True)
    return root


def loan(folder: Path) -> Loan:
    """Collect this machine's settings of pip and apt; `folder` holds what is written for it."""
    apt = folder / "apt-settings"
    apt.write_text("\n".join(_apt_settings()) + "\n")
    pip = dict(_pip_settings())
    paths = {path for value in pip.values() for path in _PATH.findall(value) if Path(path).exists()}
    folders = {f"{LENT}{path}": path for path in map(_with_neighbours, paths)}
    for name, value in pip.items():  # elsewhere in the root: a package may bring a file of the same name
        pip[name] = _PATH.sub(lambda found: found[0].replace(found[1], _lent(found[1], paths)), value)
    folders |= {APT_SETTINGS: str(apt), NAME_SERVERS: str(Path(NAME_SERVERS).resolve())}
    return Loan(environ=pip | {"APT_CONFIG": APT_SETTINGS}, folders=folders)


def _with_neighbours(path: str) -> str:
    """An index in a folder points to files beside it."""
    return str(Path(path).parent) if path.endswith("/simple") else path


def _lent(path: str, paths: set[str]) -> str:
    return f"{LENT}{path}" if path in paths else path


def _pip_settings() -> Iterator[tuple[str, str]]:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "config", "list"]
    for line in subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines():
        name, _, value = line.partition("=")
        yield "PIP_" + name.rpartition(".")[2].upper().replace("-", "_"), ast.literal_eval(value)


def _apt_settings() -> list[str]:
    found = subprocess.run(["apt-config", "dump"], check=True, capture_output=True, text=True).stdout.splitlines()
    return [line for line in found if line.startswith("Acquire::") and not line.endswith('"";')]
