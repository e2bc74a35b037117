"""The Dockerfiles, as they are written: a linter's opinion, who runs, what is installed, what is sent to the engine."""

import json
import re
import subprocess
import tomllib
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from baton.deploy.cli import COMMANDS
from tests.support.dockerfile import Stage, stages
from tests.support.pinned_venv import pinned_venv, site_packages

ROOT = Path(__file__).resolve().parents[3]
FILES = sorted((ROOT / "deploy" / "docker").glob("*Dockerfile"))
REQUIREMENTS = ROOT / "requirements"
FINAL = {"Dockerfile": ("proxy", "node"), "cuda.Dockerfile": ("",), "npu.Dockerfile": ("",)}


def finals(file: Path) -> list[list[Stage]]:
    """Each image of a file: its own stage, then those below it."""
    found = {stage.name: stage for stage in stages(file.read_text())}
    chains = []
    for name in FINAL[file.name]:
        chain = [found[name]]
        while chain[-1].base in found:
            chain.append(found[chain[-1].base])
        chains.append(chain)
    return chains


def last(chain: list[Stage], name: str) -> str:
    return next(each.text for stage in chain for each in reversed(stage.instructions) if each.name == name)


def pins(file: str) -> dict[str, str]:
    """Name → version of a file and of those that it includes."""
    found: dict[str, str] = {}
    for line in (REQUIREMENTS / file).read_text().splitlines():
        if line.startswith("-r "):
            found |= pins(line.removeprefix("-r "))
        elif "==" in line and not line.startswith("#"):
            name, _, version = line.partition(";")[0].strip().partition("==")
            found[name] = version
    return found


def needs(wanted: list[str]) -> set[str]:
    """The names of what some requirements need here, in turn, themselves included."""
    found: set[str] = set()
    todo = [Requirement(text) for text in wanted]
    while todo:
        requirement = todo.pop()
        name = re.sub("[_.]", "-", requirement.name.lower())
        if name not in found and (requirement.marker is None or requirement.marker.evaluate({"extra": ""})):
            found.add(name)
            todo += [Requirement(text) for text in distribution(name).requires or []]
    return found


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_a_linter_finds_nothing(file: Path) -> None:
    """hadolint, its remarks of every level included."""
    linter = site_packages(pinned_venv("image-tools")) / "bin" / "hadolint"
    done = subprocess.run([linter, "--no-color", file], capture_output=True, text=True, timeout=60, check=False)

    assert (done.stdout + done.stderr, done.returncode) == ("", 0)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_images_run_as_a_user_and_know_how_to_say_that_they_are_well(file: Path) -> None:
    """A numeric user, as Kubernetes wants it to see that it is not root; a health check and a start that our command has.

    The image's own steps make the user and the init process that it starts with.
    """
    for chain in finals(file):
        assert last(chain, "USER") == "10001:10001"
        assert '["baton", "health", ' in last(chain, "HEALTHCHECK")
        entrypoint = json.loads(last(chain, "ENTRYPOINT"))
        assert entrypoint[:2] == ["tini", "--"]
        assert entrypoint[2:] == ["baton"] or file.name == "npu.Dockerfile"  # that one is tried below
        assert last(chain, "CMD").strip('[]"') in COMMANDS
        steps = " ".join(each.text for stage in chain for each in stage.instructions if each.name == "RUN")
        assert "useradd --uid 10001 --user-group --create-home baton" in steps
        assert "install -d -o baton -g baton -m 0700 /run/baton" in steps
        assert re.search(r"apt-get install [^&]*\btini\b", steps)
        assert last(chain, "WORKDIR") == "/home/baton"


def test_the_image_for_npus_takes_in_what_cann_sets(tmp_path: Path) -> None:
    """As the base's entry point does, which ours replaces; then `baton` is the process, with its arguments, to get signals."""
    words = json.loads(last(finals(ROOT / "deploy" / "docker" / "npu.Dockerfile")[0], "ENTRYPOINT"))
    ascend = tmp_path / "Ascend"
    for name in ("ascend-toolkit", "cann-9.1.0/share/info/ascendnpu-ir/bin", "nnal/atb"):
        (ascend / name).mkdir(parents=True)
        (ascend / name / "set_env.sh").write_text(f"export SET=${{SET}}{name.partition('/')[0]},\n")
    baton = tmp_path / "baton"
    baton.write_text('#!/bin/bash\necho "$$ $SET $*"\n')
    baton.chmod(0o755)
    argv = [word.replace("/usr/local/Ascend", str(ascend)) for word in words[2:]]

    with subprocess.Popen(
        [*argv, "prefill", "--model", "a b"], env={"PATH": f"{tmp_path}:/usr/bin:/bin"}, stdout=subprocess.PIPE
    ) as run:
        said = run.communicate(timeout=30)[0].decode()

    assert said == f"{run.pid} ascend-toolkit,cann-9.1.0,nnal, prefill --model a b\n"


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_what_is_copied_is_there(file: Path) -> None:
    """From the repository, what is sent to the engine; from an earlier stage, what a step of that speaks of."""
    made: dict[str, str] = {}  # stage → its steps
    for stage in stages(file.read_text()):
        copies = [each for each in stage.instructions if each.name == "COPY"]
        for each in copies:
            *sources, target = each.words
            assert len(sources) == 1 or target.endswith("/")
            for path in sources:
                if "from" in each.flags:
                    assert re.search(rf"\s{re.escape(path)}(/|\s|$)", made[each.flags["from"]]), each.text
                else:
                    assert path == "." or (path.startswith("requirements/") and (ROOT / path).is_file()), each.text
        made[stage.name] = " ".join(step.text for step in stage.instructions if step.name == "RUN")
        copied = {f"/{source}" for each in copies for source in each.words[:-1]}
        assert copied >= set(re.findall(r" -r (/requirements/\S+)", made[stage.name]))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_what_images_are_made_of_is_pinned(file: Path) -> None:
    """A base has a version; pip takes its pins from requirements/ and looks for nothing else."""
    for stage in stages(file.read_text()):
        assert stage.base in {"build", "run"} or re.search(r":[\w.-]*\d[\w.-]*$", stage.base), stage.base
        for each in stage.instructions:
            for words in re.findall(r"pip(?: --python \S+)? install ([^&]*)", each.text):
                assert "--no-deps" in words
                assert re.search(r"-r (/src)?/requirements/|/wheel/\*\.whl", words), words


def test_files_of_pins_agree() -> None:
    """A package that two of them name has one version; clients of other people have their own."""
    found: dict[str, str] = {}
    for file in sorted(REQUIREMENTS.glob("*.txt")):
        if file.name not in {"clients.txt", "image-tools.txt"}:
            for name, version in pins(file.name).items():
                assert found.setdefault(name, version) == version, name


def test_pins_are_what_is_needed_and_no_more() -> None:
    """Of the proxy, and of what builds the wheel: images install without dependencies, so what is missing is missed at run time."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

    assert pins("proxy.txt").keys() == needs([*project["dependencies"], *project["optional-dependencies"]["tracing"]])
    assert pins("build.txt").keys() == needs(["hatchling"])


def test_little_is_sent_to_the_engine() -> None:
    """The packages of the wheel with the embedded model, pins, and what describes the project; no tests, no documents."""
    lines = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if not line.startswith("#")]
    brought = {line.removeprefix("!") for line in lines if line.startswith("!")}
    folders = {path.name for path in (ROOT / "baton").iterdir() if path.is_symlink()}
    kept_out = [f"deploy/{name}" for name in ("docker", "compose", "kubernetes", "monitoring")] + ["**/__pycache__"]

    assert brought == folders | {"baton", "requirements/*.txt", "pyproject.toml", "README.md", "LICENSE"}
    assert (lines[0], lines[-len(kept_out) :], len(lines)) == ("*", kept_out, 1 + len(brought) + len(kept_out))
