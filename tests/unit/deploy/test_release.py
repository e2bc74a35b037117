"""A release: what stands against it, and that its files are the same each time."""

import os
import re
import shutil
import subprocess
import tarfile
import time
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest

from baton.deploy.release import UNRELEASED, Built, build, objections, unpack, version_of

pytest.importorskip("hatchling", reason="the build back end comes with requirements/dev.txt")

ROOT = Path(__file__).resolve().parents[3]
VERSION = version_of((ROOT / "pyproject.toml").read_text())
TOOLS = tuple(
    tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]["exclude"]
)
EPOCH_S = 1_800_000_000
READY: dict[str, Any] = {"version": "1.2.0", "changelog": "# C\n\n## [1.2.0] – 2027-01-31\n\n## [1.1.0] – 2026-12-01\n"}
READY |= {"tags": ["v1.2.0", "nightly"], "changed": []}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    return build(ROOT, tmp_path_factory.mktemp("built"), epoch_s=EPOCH_S)


def test_a_commit_whose_version_changelog_and_tag_agree_is_built() -> None:
    """Tags that name no version are ignored. Without a tag it may be unreleased: `make dist` can be tried at any time."""
    changelog = READY["changelog"].replace("2027-01-31", UNRELEASED)

    assert objections(**READY) == []
    assert objections(**READY | {"tags": [], "changelog": changelog}) == []


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"changed": ["README.md"]}, "README.md"),
        ({"version": "1.3.0", "tags": []}, r"no section \[1.3.0\]"),
        ({"version": "1.1.0", "tags": []}, "begins with 1.2.0"),
        ({"tags": ["v1.2.1"]}, "tagged v1.2.1"),
        ({"changelog": f"\n## [1.2.0] – {UNRELEASED}\n"}, "is tagged"),
        ({"changelog": "\n## [1.2.0] – soon\n", "tags": []}, "'soon'"),
    ],
)
def test_what_does_not_agree_is_refused(change: dict[str, Any], word: str) -> None:
    """In a sentence that names both."""
    found = objections(**READY | change)

    assert len(found) == 1
    assert re.search(word, found[0])


def test_this_tree_could_be_released() -> None:
    """The changelog begins with the version of pyproject.toml; compose's images are of it, unless TAG says otherwise."""
    files = sorted((ROOT / "deploy" / "compose").glob("compose*.yaml"))
    named = [tag for file in files for tag in re.findall(r"\$\{TAG:-([^}]+)\}", file.read_text())]

    assert objections(version=VERSION, changelog=(ROOT / "CHANGELOG.md").read_text(), tags=[], changed=[]) == []
    assert len(named) >= 4
    assert set(named) == {VERSION}
    assert f"| `TAG` | {VERSION} |" in (ROOT / "docs" / "compose.md").read_text()


def test_a_second_build_gives_the_same_bytes(built: Built, tmp_path: Path) -> None:
    """From the first one's sdist, in another folder, with files of another age and under a umask of 077."""
    unpack(built.sdist, tmp_path / "other")
    source = next((tmp_path / "other").iterdir())
    (source / "PKG-INFO").unlink()
    for file in source.rglob("*.py"):
        os.utime(file, (1_000_000_000, 1_000_000_000))

    again = build(source, tmp_path / "again", epoch_s=EPOCH_S, umask=0o077)

    assert again.digests() == built.digests()
    # Packed files bear the time of the commit.
    with tarfile.open(built.sdist) as packed:
        times = {member.mtime for member in packed}
    assert times == {EPOCH_S}
    assert {file.date_time for file in zipfile.ZipFile(built.wheel).infolist()} == {time.gmtime(EPOCH_S)[:6]}


@pytest.mark.skipif(not shutil.which("git") or not (ROOT / ".git").exists(), reason="git lists what is to be there")
def test_sdist_and_wheel_hold_every_file_of_the_packages(built: Built) -> None:
    """All that git has in the folders that `baton` links to: data such as the dashboard's page, the model, traces and Grafana's dashboards too."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    tree = {name for name in listed.splitlines() if (ROOT / name).exists()}
    with tarfile.open(built.sdist) as packed:
        sdist = {name.partition("/")[2]: packed.getmember(name).mode for name in packed.getnames()}
    wheel = set(zipfile.ZipFile(built.wheel).namelist())
    packages = {f"baton/{name}" for name in tree if (ROOT / "baton" / name.partition("/")[0]).is_symlink()}

    assert packages | {"baton/__init__.py", "CHANGELOG.md", "LICENSE", "README.md", "pyproject.toml"} <= sdist.keys()
    assert sdist["baton/deploy/setup.sh"] & 0o111
    assert {name for name in packages if not name.startswith(TOOLS)} <= wheel
    assert {name.partition("/")[0] for name in wheel} == {"baton", f"baton_serve-{VERSION}.dist-info"}
    assert not [name for name in wheel if name.startswith(TOOLS)]
