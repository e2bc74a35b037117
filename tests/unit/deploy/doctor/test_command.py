import json
import subprocess
import sys
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from baton.contracts.secret import generate_secret
from baton.deploy.doctor import command
from tests.support.certificates import Authority
from tests.support.processes import answering

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


class _Ready(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{"nodes": []}')


@pytest.mark.parametrize("by_flag", [True, False])
def test_a_proxy_is_verified_with_the_authorities_that_are_named(
    by_flag: bool, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the flag or by the environment, as for `baton admin`; with neither it is not believed."""
    authority = Authority(tmp_path)
    secret = tmp_path / "secret"
    secret.write_text(generate_secret())
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)

    with answering(_Ready, authority.sign("server")) as port:
        argv = ["--proxy", f"https://127.0.0.1:{port}", "--secret-file", str(secret), "--json"]

        assert found(argv, capsys) == {"proxy-unreachable"}
        if not by_flag:
            monkeypatch.setenv("SSL_CERT_FILE", str(authority.path))
        flags = ["--ca-file", str(authority.path)] if by_flag else []
        assert found([*argv, *flags], capsys) == {"no-nodes"}


def found(argv: list[str], capsys: pytest.CaptureFixture[str]) -> set[str]:
    assert command.main(argv) == 1
    return {finding["code"] for finding in json.loads(capsys.readouterr().out)["findings"]}


def test_authorities_that_cannot_be_read_are_no_finding(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "secret").write_text(generate_secret())
    with pytest.raises(SystemExit) as ended:
        command.main(
            ["--proxy", "https://127.0.0.1:1", "--secret-file", str(tmp_path / "secret"), "--ca-file", "/no/such.pem"]
        )

    assert ended.value.code == 2
    assert "/no/such.pem cannot be read" in capsys.readouterr().err
