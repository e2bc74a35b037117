"""`deploy/setup.sh` among stubs of Python: which one it takes, which build of torch, and what it says where there is none."""

from pathlib import Path
from typing import Final

import pytest

from tests.support.stub_commands import StubCommands

SCRIPT: Final = Path(__file__).parents[3] / "deploy" / "setup.sh"
STUB: Final = """case "$*" in
    "-V") echo Python {version}.1 ;;
    *version_info*) echo {version} ;;
    *ensurepip*) exit 0 ;;
    "-m venv "*) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
    "-m pip --version") exit "$PIP" ;;
    *+cpu) exit 1 ;;  # its registry has no such build
    *"pip install"*torch==*) exit "$CUDA_BUILD" ;;
    *) exit 7 ;;
esac"""


@pytest.fixture
def machine(tmp_path: Path) -> StubCommands:
    """The few programs that the script needs, and no Python; nothing is missing, nothing is installed."""
    made = StubCommands(tmp_path, "bash", "cat", "dirname", "grep", "sha256sum", "tr", "id", "mkdir", "cp")
    made.stub("apt-get")
    made.stub("ldconfig", "echo libibverbs.so.1 libnuma.so.1 libcurl.so.4")
    made.environ |= {"VENV": str(tmp_path / "venv"), "CUDA_BUILD": "1", "PIP": "0"}
    return made


def set_up(machine: StubCommands, *versions: str) -> tuple[int, str]:
    """Run the script where these Pythons are; return its status and its words."""
    for version in versions:
        machine.stub(f"python{version}", STUB.format(version=version))
    return machine.run(SCRIPT)


@pytest.mark.parametrize(
    ("versions", "taken"),
    [(("3.12",), "3.12"), (("3.13", "3.12"), "3.12"), (("3.13", "3.11"), "3.11"), (("3.14", "3.13"), "3.13")],
)
def test_the_first_supported_python_is_taken(machine: StubCommands, versions: tuple[str, ...], taken: str) -> None:
    """In the order 3.11, 3.12, 3.13."""
    set_up(machine, *versions)

    assert f"python{taken} -m venv {machine.environ['VENV']}" in machine.calls()


@pytest.mark.parametrize(
    ("versions", "named", "words"),
    [
        ((), "", "Python 3.11, 3.12 or 3.13 is needed"),
        (("3.10", "3.14"), "", "uv python install 3.12"),
        (("3.10", "3.12"), "python3.10", "are for Python 3.11 to 3.13"),
    ],
)
def test_without_a_supported_one_the_ways_to_get_one_are_named(
    machine: StubCommands, versions: tuple[str, ...], named: str, words: str
) -> None:
    """In a sentence, before anything is made; also where another one is named."""
    if named:
        machine.environ["PYTHON"] = str(machine.folder / named)

    status, said = set_up(machine, *versions)

    assert (status, words in said) == (1, True)


@pytest.mark.parametrize("pip", [0, 1])
def test_an_environment_that_was_left_half_made_is_made_again(machine: StubCommands, pip: int) -> None:
    """Ctrl-C between the link to Python and pip leaves one; a whole one is kept."""
    set_up(machine, "3.12")
    machine.environ["PIP"] = str(pip)

    set_up(machine)

    made = f"python3.12 -m venv {machine.environ['VENV']}"
    assert machine.calls().count(made) == 1 + pip


@pytest.mark.parametrize("cuda_build", [0, 1])
def test_without_a_cpu_build_the_other_build_of_torch_is_taken(machine: StubCommands, cuda_build: int) -> None:
    """With the libraries that it needs, after a word about the size of it; where that fails too, nothing goes on."""
    machine.environ["CUDA_BUILD"] = str(cuda_build)

    _, said = set_up(machine, "3.13")

    installed = [line.partition("-check ")[2] for line in machine.calls() if "pip install" in line]
    assert installed[0].startswith("--no-deps torch==")
    assert installed[1] == installed[0].removeprefix("--no-deps ").removesuffix("+cpu")
    assert "a download of about 3 GB" in said
    assert ("pip could not install torch" in said.splitlines()[-1]) == bool(cuda_build)
    assert (len(installed) > 2) == (not cuda_build)
