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
PACKAGES: list[str] = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
KEPT_OUT = ("torchvision", "torchaudio", "torchcodec")


@pytest.mark.parametrize("name", PACKAGES)
def test_each_top_level_name_is_ours_alone(name: str) -> None:
    """Our packages have plain names: no other distribution may bring one of them (`proxy.py` has a `proxy`)."""
    providers = set(importlib.metadata.packages_distributions().get(name, []))
    spec = importlib.util.find_spec(name)

    assert providers <= {PROJECT["project"]["name"]}
    assert spec is not None
    assert spec.origin == str(ROOT / name / "__init__.py")


@pytest.mark.skipif(
    not importlib.util.find_spec("hatchling"), reason="the build back end comes with requirements/dev.txt"
)
def test_the_wheel_holds_our_packages_and_nothing_else(tmp_path: Path) -> None:
    """What is installed elsewhere is what this tree says, the embedded model included."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    wheel = next(tmp_path.glob("*.whl"))
    names = zipfile.ZipFile(wheel).namelist()

    tops = {name.partition("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == set(PACKAGES)
    assert "deploy/embedded_model/weights/model.safetensors" in names
    assert {"proxy/dashboard/page/index.html", "proxy/dashboard/page/main.js"} <= set(names)


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
