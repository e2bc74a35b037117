"""An environment of its own for clients of other people: made when it is first wanted, kept in the user's cache.

Its pins are in requirements/clients.txt; a change of those makes another one.
"""

import os
import shutil
import subprocess
import sys
from hashlib import sha256
from pathlib import Path
from typing import Final

PINS: Final = Path(__file__).parents[2] / "requirements" / "clients.txt"
INSTALL_S: Final = 300


def clients_python() -> Path:
    """Return the interpreter of the environment, made if it is not there.

    Raises:
        subprocess.CalledProcessError: the registry does not have them.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "baton"
    venv = cache / f"clients-{sha256(PINS.read_bytes()).hexdigest()[:12]}"
    if not venv.exists():
        making = venv.with_name(f"{venv.name}.{os.getpid()}")
        try:
            _make(making)
            making.rename(venv)
        finally:
            shutil.rmtree(making, ignore_errors=True)
    return venv / "bin" / "python"


def _make(venv: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True, timeout=INSTALL_S)
    site = next((venv / "lib").glob("python3.*")) / "site-packages"
    pip = [sys.executable, "-m", "pip", "install", "-qq", "--no-input", "--disable-pip-version-check", "--no-deps"]
    subprocess.run([*pip, "--target", site, "-r", PINS], check=True, timeout=INSTALL_S)
