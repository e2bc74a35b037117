import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from baton.deploy import cli
from baton.loadtest import words


@pytest.mark.parametrize(("argv", "status"), [([], 2), (["frobnicate"], 2), (["--help"], 0)])
def test_without_a_right_command_the_list_is_shown(
    capsys: pytest.CaptureFixture[str], argv: list[str], status: int
) -> None:
    """The status tells scripts, the text tells people; help is not a mistake."""
    assert cli.main(argv) == status

    said = capsys.readouterr()
    assert all(f"  {name} " in (said.err if status else said.out) for name in cli.COMMANDS)


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_every_command_delegates_to_its_main(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Arguments and exit status are passed through untouched."""
    calls: list[list[str]] = []

    class Module:
        @staticmethod
        def main(argv: list[str]) -> int:
            calls.append(argv)
            return 5

    wanted = cli.COMMANDS[command][0]
    monkeypatch.setattr(importlib, "import_module", {wanted: Module}.__getitem__)

    assert cli.main([command, "--port", "1"]) == 5
    assert calls == [["--port", "1"]]


def test_a_reader_that_has_ended_is_no_error() -> None:
    """`baton config check | head -1` prints no trace."""
    line = f"{sys.executable} -m baton.deploy.cli config check | head -1; exit ${{PIPESTATUS[0]}}"
    ran = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=100, check=False)
    assert (ran.stdout, ran.stderr) == ("cluster:\n", "")
    assert ran.returncode in (0, cli.EXIT_BROKEN_PIPE)  # 0: the pipe took everything before its reader ended


def test_ctrl_c_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """At any moment, also while a command's module is imported."""

    def interrupted(_: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(importlib, "import_module", interrupted)
    assert cli.main(["serve"]) == words.EXIT_INTERRUPTED


def test_config_check_prints_values_and_origins_but_no_secret(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The `baton.yaml` of the current folder counts. Of a secret the path is shown; its content is only checked."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "baton.yaml").write_text("proxy: {port: 9}")
    secret = tmp_path / "secret"
    secret.write_text("do-not-print-this-one")

    assert cli.main(["config", "check", "--secret-file", str(secret)]) == 0

    output = capsys.readouterr().out
    assert ["port:", "9", "#", "baton.yaml"] in [line.split() for line in output.splitlines()]
    assert str(secret) in output
    assert "do-not-print" not in output


@pytest.mark.parametrize(
    ("flag", "words"),
    [("--config", "did you mean proxy.port?"), ("--secret-file", "cannot read the cluster secret")],
)
def test_config_check_fails_on_mistakes(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, flag: str, words: str
) -> None:
    """A wrong file, and a secret that cannot be used, give their sentence and status 2."""
    file = tmp_path / "file"
    if flag == "--config":
        file.write_text("proxy: {prot: 9}")

    assert cli.main(["config", "check", flag, str(file)]) == 2
    assert words in capsys.readouterr().err
