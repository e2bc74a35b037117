import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
KEPT_OUT = ("torchvision", "torchaudio", "torchcodec")


def test_each_package_is_a_link_to_a_folder_of_the_repository() -> None:
    """Git keeps a link only where the file system has them; a copy would not follow the folder."""
    links = [path for path in (ROOT / "baton").iterdir() if path.is_symlink()]

    assert len(links) == 9
    assert [link.readlink() for link in links] == [Path("..", link.name) for link in links]
    assert all((link / "__init__.py").is_file() for link in links)


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
