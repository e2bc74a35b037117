"""What `baton serve` prints is run as printed, against a server that asks for the key and speaks TLS."""

import json
import os
import subprocess
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, ClassVar

import pytest

from baton.contracts.configuration.load import load
from baton.deploy.welcome import KEY_VARIABLE, FirstRequest, trusted_ca, welcome
from tests.support.certificates import Authority
from tests.support.processes import answering

KEY = "a-key-of-this-test"
MODEL = """it's a "model" """


class _Server(BaseHTTPRequestHandler):
    """Answers a completion of the right model, asked for with the right key."""

    needs_key: ClassVar[bool] = False

    def do_POST(self) -> None:
        body: dict[str, Any] = json.loads(self.rfile.read(int(self.headers["content-length"])))
        permitted = not self.needs_key or self.headers["authorization"] == f"Bearer {KEY}"
        served = permitted and self.path == "/v1/completions" and body["model"] == MODEL
        answer = {"choices": [{"index": 0, "text": "THE ANSWER", "finish_reason": "length", "logprobs": None}]}
        content = json.dumps(answer | {"id": "x", "object": "text_completion", "created": 1, "model": MODEL}).encode()
        self.send_response(200 if served else 403)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(content) if served else 0))
        self.end_headers()
        self.wfile.write(content if served else b"")


def _printed(text: str) -> tuple[str, str]:
    """Return the curl command and the Python program of a welcome."""
    lines = text.splitlines()
    curl = next(number for number, line in enumerate(lines) if line.startswith("  curl "))
    python = next(number for number, line in enumerate(lines) if line.startswith(("  import ", "  from ")))
    end = next(number for number, line in enumerate(lines) if line.startswith("  print("))
    return "\n".join(lines[curl:python]), "\n".join(line[2:] for line in lines[python : end + 1])


@pytest.mark.parametrize(
    ("tls", "needs_key"),
    [("none", False), ("chain with its authority", True), ("leaf alone", False)],
)
def test_both_examples_work_as_printed(
    tls: str, needs_key: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With and without API keys, without TLS, with a certificate that verifies and with one that does not."""
    certificate = None
    if tls != "none":
        authority = Authority(tmp_path)
        certificate = authority.sign("server")
        if tls == "chain with its authority":
            certificate[0].write_text(certificate[0].read_text() + authority.path.read_text())
    monkeypatch.setenv(KEY_VARIABLE, KEY)
    monkeypatch.setenv("NO_PROXY", "*")
    with answering(type("Handler", (_Server,), {"needs_key": needs_key}), certificate) as port:
        url = f"{'https' if certificate else 'http'}://127.0.0.1:{port}"
        first = FirstRequest(
            url=url,
            model=MODEL,
            token_file=tmp_path / "token",
            needs_key=needs_key,
            ca_file=trusted_ca(url, certificate[0] if certificate else None),
        )
        text = welcome(first)
        assert ("--insecure" in text) is (tls == "leaf alone")
        curl, program = _printed(text)
        ran = subprocess.run(["bash", "-c", curl], capture_output=True, text=True, timeout=100, check=False)
        assert "THE ANSWER" in ran.stdout, (curl, ran)
        exec(program, {})  # noqa: S102  # here: an interpreter of its own imports for a second
        assert "THE ANSWER" in capsys.readouterr().out


def test_a_shell_with_the_key_can_go_on_with_baton(monkeypatch: pytest.MonkeyPatch) -> None:
    """The variable that is to hold the key is not taken for a setting, which every command would refuse."""
    monkeypatch.setenv(KEY_VARIABLE, KEY)
    load({}, os.environ, None)


def test_the_dashboard_is_named_with_the_file_of_its_token(tmp_path: Path) -> None:
    text = welcome(FirstRequest(url="http://127.0.0.1:9000", model="m", token_file=tmp_path / "token"))
    assert f"http://127.0.0.1:9000/dashboard, with the token in {tmp_path / 'token'}" in text
