"""`deploy/test_setup.sh` among stubs: what is there, who one is, and what apt-get is told."""

import shutil
import subprocess
from pathlib import Path
from typing import Final

import pytest

SCRIPT: Final = Path(__file__).parents[3] / "deploy" / "test_setup.sh"
PACKAGE: Final = "chromium-headless-shell"


class Machine:
    """A PATH with stubs and the few real tools that the script needs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder / "log"
        for tool in ("bash", "tr", "env"):
            (folder / tool).symlink_to(shutil.which(tool) or "")
        self.stub("find", "echo font.ttf")

    def stub(self, name: str, script: str) -> None:
        """Put a command there."""
        path = self.folder / name
        path.write_text(f"#!{shutil.which('bash')}\n{script}\n")
        path.chmod(0o755)

    def run(self) -> tuple[int, str, str]:
        """Run the script; return its status, what it said, and what apt-get was told."""
        ended = subprocess.run(
            [SCRIPT], env={"PATH": str(self.folder)}, capture_output=True, text=True, check=False, timeout=30
        )
        assert ended.stdout == ""
        return ended.returncode, ended.stderr, self.log.read_text() if self.log.exists() else ""


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """Root, apt-get, a font, what makes networks; no browser."""
    made = Machine(tmp_path)
    made.stub("ip", "")
    made.stub("id", "echo 0")
    made.stub("apt-get", f'echo "$@" >>{made.log}')
    return made


def test_where_everything_is_there_nothing_is_done_or_said(machine: Machine) -> None:
    """Every `make test` calls it."""
    machine.stub(PACKAGE, "")

    assert machine.run() == (0, "", "")


def test_root_gets_the_browser(machine: Machine) -> None:
    """Without what Debian recommends beside it."""
    status, _, told = machine.run()

    assert status == 0
    assert told.splitlines() == ["update -qq", f"install -y -qq --no-install-recommends {PACKAGE}"]


def test_root_also_gets_what_networks_are_made_with(machine: Machine) -> None:
    """Nobody else could use it, so nobody else is asked for it."""
    (machine.folder / "ip").unlink()

    told = machine.run()[2]
    machine.stub("id", "echo 1000")
    said = machine.run()[1]

    assert told.endswith(f"{PACKAGE} iproute2\n")
    assert f"need these packages: {PACKAGE} - install" in said


@pytest.mark.parametrize("sudo", [None, "exit 1"])
def test_without_root_it_says_what_to_install(machine: Machine, sudo: str | None) -> None:
    """A sentence that can be pasted, and a failure."""
    machine.stub("id", "echo 1000")
    if sudo:
        machine.stub("sudo", sudo)

    status, said, told = machine.run()

    assert (status, told) == (1, "")
    assert f"sudo apt-get install -y --no-install-recommends {PACKAGE} " in said
