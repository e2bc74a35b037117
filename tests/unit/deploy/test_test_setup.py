"""`deploy/test_setup.sh` among stubs: what is there, who one is, and what apt-get is told."""

from pathlib import Path
from typing import Final

import pytest

from tests.support.stub_commands import StubCommands

SCRIPT: Final = Path(__file__).parents[3] / "deploy" / "test_setup.sh"
PACKAGE: Final = "chromium-headless-shell"


@pytest.fixture
def machine(tmp_path: Path) -> StubCommands:
    """Root, apt-get, a font, what makes networks; no browser."""
    made = StubCommands(tmp_path, "bash", "tr", "env")
    made.stub("find", "echo font.ttf")
    made.stub("ip")
    made.stub("id", "echo 0")
    made.stub("apt-get")
    return made


def test_where_everything_is_there_nothing_is_done_or_said(machine: StubCommands) -> None:
    machine.stub(PACKAGE)

    assert machine.run(SCRIPT) == (0, "")
    assert machine.calls("apt-get") == []


def test_root_gets_the_browser(machine: StubCommands) -> None:
    """Without what Debian recommends beside it."""
    assert machine.run(SCRIPT)[0] == 0

    install = f"apt-get install -y -qq --no-install-recommends {PACKAGE}"
    assert machine.calls("apt-get") == ["apt-get update -qq", install]


def test_root_also_gets_what_networks_are_made_with(machine: StubCommands) -> None:
    """No other user could use it, so no other user is asked to install it."""
    (machine.folder / "ip").unlink()

    machine.run(SCRIPT)
    assert machine.calls("apt-get")[-1].endswith(f"{PACKAGE} iproute2")

    machine.stub("id", "echo 1000")
    assert f"need these packages: {PACKAGE} - install" in machine.run(SCRIPT)[1]


@pytest.mark.parametrize("sudo", [None, "exit 1"])
def test_without_root_it_says_what_to_install(machine: StubCommands, sudo: str | None) -> None:
    """A sentence that can be pasted, and a failure."""
    machine.stub("id", "echo 1000")
    if sudo:
        machine.stub("sudo", sudo)

    status, said = machine.run(SCRIPT)

    assert (status, machine.calls("apt-get")) == (1, [])
    assert f"sudo apt-get install -y --no-install-recommends {PACKAGE} " in said
