"""Environments of their own for other people's programs: made when first wanted, kept in the user's cache.

The pins lie in requirements/; a change of those makes another one.
"""

import subprocess
import sys
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Final

from tests.support.user_cache import made_once

REQUIREMENTS: Final = Path(__file__).parents[2] / "requirements"
INSTALL_S: Final = 300


def pinned_venv(name: str) -> Path:
    """Return the folder of the environment with the pins of `requirements/NAME.txt`, made if it is not there.

    Raises:
        subprocess.CalledProcessError: the registry does not have them.
    """
    pins = REQUIREMENTS / f"{name}.txt"
    return made_once(f"{name}-{sha256(pins.read_bytes()).hexdigest()[:12]}", partial(_make, pins))


def site_packages(venv: Path) -> Path:
    """Return where its packages lie; programs that they bring are in `bin` there."""
    return next((venv / "lib").glob("python3.*")) / "site-packages"


def _make(pins: Path, venv: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True, timeout=INSTALL_S)
    pip = [sys.executable, "-m", "pip", "install", "-qq", "--no-input", "--disable-pip-version-check", "--no-deps"]
    subprocess.run([*pip, "--target", site_packages(venv), "-r", pins], check=True, timeout=INSTALL_S)
