import importlib.metadata
import importlib.util
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
WHEEL = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]
KEPT_OUT = ("torchvision", "torchaudio", "torchcodec")


def test_the_import_name_is_ours_alone() -> None:
    """Another distribution that brings `baton` would lie in the same folder."""
    assert set(importlib.metadata.packages_distributions().get("baton", [])) <= {PROJECT["project"]["name"]}


def test_each_package_is_a_link_to_a_folder_of_the_repository() -> None:
    """Git keeps a link only where the file system has them; a copy would not follow the folder."""
    links = [path for path in (ROOT / "baton").iterdir() if path.is_symlink()]

    assert len(links) == 9
    assert [link.readlink() for link in links] == [Path("..", link.name) for link in links]
    assert all((link / "__init__.py").is_file() for link in links)


@pytest.mark.skipif(
    not importlib.util.find_spec("hatchling"), reason="the build back end comes with requirements/dev.txt"
)
def test_the_wheel_holds_our_packages_and_nothing_else(tmp_path: Path) -> None:
    """What is installed elsewhere is what this tree says, the embedded model included."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    wheel = next(tmp_path.glob("*.whl"))
    names = zipfile.ZipFile(wheel).namelist()

    about = f"{PROJECT['project']['name'].replace('-', '_')}-{PROJECT['project']['version']}.dist-info"
    assert {name.partition("/")[0] for name in names} == {"baton", about}
    assert not [name for name in names for tool in WHEEL["exclude"] if name.startswith(tool)]
    assert {"embedded_model/weights/model.safetensors", "serve.py"} <= _inside(names, "baton/deploy/")
    assert {"dashboard/page/index.html", "dashboard/page/main.js"} <= _inside(names, "baton/proxy/")


def _inside(names: list[str], folder: str) -> set[str]:
    return {name.removeprefix(folder) for name in names if name.startswith(folder)}


def test_every_direct_dependency_is_pinned() -> None:
    """The pinned profile covers what pyproject.toml asks for, and keeps out what breaks it."""
    pinned = {
        line.partition("==")[0]
        for file in (ROOT / "requirements").glob("*.txt")
        for line in file.read_text().splitlines()
        if "==" in line and not line.startswith("#")
    }
    extras = PROJECT["project"]["optional-dependencies"]
    wanted = [*PROJECT["project"]["dependencies"], *extras["cpu"], *extras["tracing"], *extras["dev"]]

    assert {name.partition(">")[0].partition("=")[0] for name in wanted} <= pinned
    assert not pinned & set(KEPT_OUT)
