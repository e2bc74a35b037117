"""`deploy/setup.sh` among stubs of Python: which one it takes, which build of torch, and what it says where there is none."""

import os
import subprocess
from pathlib import Path
from shutil import which
from typing import Final

import pytest

SCRIPT: Final = Path(__file__).parents[3] / "deploy" / "setup.sh"
TOOLS: Final = ("bash", "cat", "dirname", "grep", "sha256sum", "tr", "id", "mkdir", "cp", "ldconfig", "apt-get")
PATIENCE_S: Final = 60.0
STUB: Final = """#!/bin/bash
echo "$0 $*" >>"$LOG"
case "$*" in
    "-V") echo Python {version}.1 ;;
    *version_info*) echo {version} ;;
    *ensurepip*) exit 0 ;;
    "-m venv "*) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
    *+cpu) exit 1 ;;  # its registry has no such build
    *"pip install"*torch==*) exit "$CUDA_BUILD" ;;
    *) exit 7 ;;
esac
"""


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    """A folder with the few programs that the script needs, and no Python."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in TOOLS:
        if found := which(name):
            (folder / name).symlink_to(found)
    for name in ("apt-get", "ldconfig"):  # nothing is missing, nothing is installed
        (folder / name).unlink(missing_ok=True)
        (folder / name).write_text("#!/bin/bash\necho libibverbs.so.1 libnuma.so.1 libcurl.so.4\n")
        (folder / name).chmod(0o755)
    return folder


def set_up(tools: Path, *versions: str, python: str = "", cuda_build: int = 1) -> tuple[int, str, list[str]]:
    """Run the script where these Pythons are; return its status, its words, and what the Pythons were asked."""
    for version in versions:
        stub = tools / f"python{version}"
        stub.write_text(STUB.format(version=version))
        stub.chmod(0o755)
    log = tools.parent / "log"
    log.touch()
    environ = {"PATH": str(tools), "LOG": str(log), "VENV": str(tools.parent / "venv"), "CUDA_BUILD": str(cuda_build)}
    environ |= {"PYTHON": str(tools / python)} if python else {}
    done = subprocess.run(
        [tools / "bash", SCRIPT], env=environ, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    return (
        done.returncode,
        done.stderr,
        [line.removeprefix(f"{tools}{os.sep}") for line in log.read_text().splitlines()],
    )


@pytest.mark.parametrize(
    ("versions", "taken"),
    [(("3.12",), "3.12"), (("3.13", "3.12"), "3.12"), (("3.13", "3.11"), "3.11"), (("3.14", "3.13"), "3.13")],
)
def test_the_first_supported_python_is_taken(tools: Path, versions: tuple[str, ...], taken: str) -> None:
    """In the order 3.11, 3.12, 3.13."""
    _, _, asked = set_up(tools, *versions)

    assert f"python{taken} -m venv {tools.parent / 'venv'}" in asked


@pytest.mark.parametrize("versions", [(), ("3.10", "3.14")])
def test_without_one_the_ways_to_get_one_are_named(tools: Path, versions: tuple[str, ...]) -> None:
    """In a sentence, before anything is made."""
    status, said, _ = set_up(tools, *versions)

    assert status == 1
    assert "Python 3.11, 3.12 or 3.13 is needed" in said
    assert "uv python install 3.12" in said


def test_one_that_is_named_must_be_supported(tools: Path) -> None:
    """It is not exchanged for another one."""
    status, said, _ = set_up(tools, "3.10", "3.12", python="python3.10")

    assert status == 1
    assert "are for Python 3.11 to 3.13" in said


@pytest.mark.parametrize("cuda_build", [0, 1])
def test_without_a_cpu_build_the_other_build_of_torch_is_taken(tools: Path, cuda_build: int) -> None:
    """With the libraries that it needs, after a word about the size of it; where that fails too, nothing goes on."""
    _, said, asked = set_up(tools, "3.13", cuda_build=cuda_build)

    installed = [line.partition("-check ")[2] for line in asked if "pip install" in line]
    assert installed[0].startswith("--no-deps torch==")
    assert installed[1] == installed[0].removeprefix("--no-deps ").removesuffix("+cpu")
    assert "a download of about 3 GB" in said
    assert ("pip could not install torch" in said.splitlines()[-1]) == bool(cuda_build)
    assert (len(installed) > 2) == (not cuda_build)
