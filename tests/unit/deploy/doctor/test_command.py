import json
import subprocess
import sys
from pathlib import Path

import pytest

from baton.deploy.doctor import command

HEAVY = ("numpy", "torch", "vllm", "mooncake")


def test_the_proxys_image_is_enough() -> None:
    """It has none of the heavy libraries; to look at a deployment, nothing of them is imported."""
    hidden = "; ".join(f"sys.modules[{name!r}] = None" for name in HEAVY)

    done = subprocess.run(
        [sys.executable, "-c", f"import sys; {hidden}; import baton.deploy.doctor.command"], check=False
    )

    assert done.returncode == 0


def test_a_secret_that_cannot_be_read_is_a_finding(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Programs get their JSON in any case; no server is asked."""
    monkeypatch.chdir(tmp_path)
    for flags in ([], ["--secret-file", str(tmp_path / "nowhere")]):
        assert command.main(["--proxy", "http://127.0.0.1:1", "--json", *flags]) == 1
        report = json.loads(capsys.readouterr().out)
        assert [finding["code"] for finding in report["findings"]] == ["secret-file"]


@pytest.mark.parametrize("argv", [["--role", "baker"], ["--idle-gap", "-1"], ["--idle-gap", "x"], ["more"]])
def test_a_wrong_command_line_is_no_finding(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        command.main(argv)

    assert ended.value.code == 2
    assert capsys.readouterr().err
