"""`baton doctor` on a machine, as a command: nothing to say of this one, and the faults that are planted in it."""

import json
import os
import resource
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import copyfile
from typing import Any

import pytest

from baton.deploy.doctor import command
from tests.support.ports import free_port

mooncake = pytest.importorskip("mooncake")

LIBRARY = b"libibverbs.so.1"
MISSING = b"libibverbx.so.1"  # as long


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A folder with a configuration whose ports are free."""
    ports = [free_port() for _ in range(4)]
    sections = {
        "proxy": {"port": ports[0]},
        "prefill_node": {"port": ports[1], "control_port": ports[2]},
        "decode_node": {"port": ports[3]},
    }
    (tmp_path / "baton.yaml").write_text(json.dumps(sections))
    return tmp_path


def doctor(folder: Path, *, env: dict[str, str], open_files: int = 0) -> dict[str, Any]:
    """Run the command in a process of its own."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (open_files, open_files))

    done = subprocess.run(
        [sys.executable, "-m", "baton.deploy.cli", "doctor", "--json"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[3]), **env},
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=limit if open_files else None,
    )
    assert done.returncode in (0, 1), done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    assert done.returncode == (1 if report["wrong"] else 0)
    return report


@contextmanager
def taken_port(folder: Path, section: str) -> Iterator[int]:
    """Take the port of a section, as what is no healthy server does."""
    port: int = json.loads((folder / "baton.yaml").read_text())[section]["port"]
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port))
        yield port


def codes(report: dict[str, Any]) -> list[str]:
    return [finding["code"] for finding in report["findings"]]


def test_what_is_wrong_with_a_role_is_named_and_nothing_else(here: Path) -> None:
    """A model that is named must be there, and what is listened on be free and ours. Mooncake starts, and pushes to itself."""
    env = {"BATON_DECODE_NODE_MODEL": "/no/such/model", "BATON_DECODE_NODE_ADVERTISE_HOST": "192.0.2.7"}
    with taken_port(here, "prefill_node") as port:
        report = doctor(here, env=env)

    assert [(each["code"], each["where"]) for each in report["findings"]] == [
        ("port", "the prefill node here"),
        ("model", "the decode node here"),
        ("address", "the decode node here"),
    ]
    assert str(port) in report["findings"][0]["what"]
    assert report["versions"]["mooncake"]


def test_a_low_limit_and_a_setting_that_breaks_mooncakes_rules_are_named(here: Path) -> None:
    """The rest still works with so few open files."""
    report = doctor(here, open_files=512, env={"MC_TCP_PROTO": "1"})

    assert codes(report) == ["open-files", "engine-environment"]
    assert "512" in report["findings"][0]["what"]


def test_a_missing_library_is_named(here: Path, tmp_path: Path) -> None:
    """Mooncake's own module asks the loader for one that is not there."""
    real, fake = Path(mooncake.__file__).parent, tmp_path / "path" / "mooncake"
    fake.mkdir(parents=True)
    for file in real.iterdir():
        (fake / file.name).symlink_to(file)
    for folder in real.parent.glob("mooncake*.libs"):
        (fake.parent / folder.name).symlink_to(folder)
    engine = fake / "engine.so"
    engine.unlink()
    copyfile(real / "engine.so", engine)
    content = engine.read_bytes()
    assert LIBRARY in content
    engine.write_bytes(content.replace(LIBRARY, MISSING))
    path = os.pathsep.join((str(fake.parent), str(Path(__file__).resolve().parents[3])))

    report = doctor(here, env={"PYTHONPATH": path})

    assert codes(report) == ["library"]
    assert MISSING.decode() in report["findings"][0]["what"]
    assert "apt-get install" in report["findings"][0]["fix"]


def test_a_role_is_checked_as_before_its_start(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It alone. It needs a secret; a mistake in the configuration is told in the sentence that `baton config check` has."""
    monkeypatch.chdir(here)
    with taken_port(here, "proxy"):
        assert command.main(["--role", "proxy", "--json"]) == 1
    assert codes(json.loads(capsys.readouterr().out)) == ["secret-file", "port"]

    (here / "secret").write_text("a secret for tests only")
    assert command.main(["--role", "proxy", "--json", "--secret-file", "secret"]) == 0
    assert codes(json.loads(capsys.readouterr().out)) == []

    (here / "baton.yaml").write_text("proxy: {prot: 9}")
    assert command.main(["--role", "proxy", "--json", "--secret-file", "secret"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert "configuration" in codes(report)
    assert "did you mean proxy.port?" in str(report["findings"])
