"""`deploy/test_setup.sh` among stubs: what is there, who one is, and what apt-get is told."""

from pathlib import Path
from typing import Final

import pytest

from tests.support.stub_commands import StubCommands

SCRIPT: Final = Path(__file__).parents[3] / "deploy" / "test_setup.sh"
PACKAGE: Final = "chromium-headless-shell"


@pytest.fixture
def machine(tmp_path: Path) -> StubCommands:
    """Root, apt-get, a font; no browser, and nothing that makes networks."""
    made = StubCommands(tmp_path, "bash", "tr", "env")
    made.stub("find", "echo font.ttf")
    made.stub("id", "echo 0")
    made.stub("apt-get")
    return made


@pytest.mark.parametrize(
    ("there", "installs"),
    [
        ([PACKAGE, "ip"], []),  # nothing is done, or said
        (["ip"], ["update -qq", f"install -y -qq --no-install-recommends {PACKAGE}"]),
        # What networks are made with: no other user could use it, so no other user is asked to install it.
        ([], ["update -qq", f"install -y -qq --no-install-recommends {PACKAGE} iproute2"]),
    ],
)
def test_root_gets_what_is_missing(machine: StubCommands, there: list[str], installs: list[str]) -> None:
    """Without what Debian recommends beside it."""
    for name in there:
        machine.stub(name)

    status, said = machine.run(SCRIPT)
    assert (status, not said) == (0, not installs)
    assert machine.calls("apt-get") == [f"apt-get {words}" for words in installs]


@pytest.mark.parametrize("sudo", [None, "exit 1"])
def test_without_root_it_says_what_to_install(machine: StubCommands, sudo: str | None) -> None:
    """A sentence that can be pasted, and a failure."""
    machine.stub("id", "echo 1000")
    if sudo:
        machine.stub("sudo", sudo)

    status, said = machine.run(SCRIPT)

    assert (status, machine.calls("apt-get")) == (1, [])
    assert f"need these packages: {PACKAGE} - install" in said
    assert f"sudo apt-get install -y --no-install-recommends {PACKAGE} " in said
