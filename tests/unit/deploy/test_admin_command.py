import json
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import httpx
import pytest

from baton.contracts.http import error_body
from baton.deploy import admin_command
from tests.support.processes import answering

NODE = "http://10.0.0.7:8200"
VIEW = {"role": "decode", "url": NODE, "state": "ready", "requests": 3, "models": ["m", "lora"], "reason": ""}


class Proxy:
    """Notes what it is asked and answers with one node."""

    def __init__(self, status: int = 200, content: Any = None) -> None:
        self.asked: list[tuple[str, str, Any]] = []
        self._status = status
        self._content = (
            {"nodes": [{**VIEW, "ok": True, "status": 200, "answer": "done"}]} if content is None else content
        )
        self.transport = httpx.MockTransport(self._answer)

    def _answer(self, request: httpx.Request) -> httpx.Response:
        if request.headers["authorization"] != "Bearer the token of this test":
            return httpx.Response(401, json=error_body("the admin token is needed"))
        body = json.loads(request.content) if request.content else None
        self.asked.append((request.method, str(request.url.raw_path, "ascii"), body))
        if isinstance(self._content, bytes):
            return httpx.Response(self._status, content=self._content)
        return httpx.Response(self._status, json=self._content)


@pytest.fixture
def token_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "admin.token"
    path.write_text("the token of this test\n")
    monkeypatch.setenv("BATON_PROXY_ADMIN_TOKEN_FILE", str(path))
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("token_file")
@pytest.mark.parametrize(
    ("argv", "asked"),
    [
        (["nodes", "--json"], ("GET", "/admin/nodes", None)),
        (["state"], ("GET", "/admin/state", None)),
        (["remove", NODE], ("DELETE", "/admin/nodes?url=http%3A%2F%2F10.0.0.7%3A8200", None)),
        (["drain", NODE], ("POST", "/admin/nodes/drain", {"url": NODE, "draining": True})),
        (["undrain", NODE], ("POST", "/admin/nodes/drain", {"url": NODE, "draining": False})),
        (["role", "prefill", NODE], ("POST", "/admin/nodes/role", {"url": NODE, "role": "prefill"})),
        (["evacuate", NODE], ("POST", "/admin/nodes/evacuate", {"url": NODE, "drain": False})),
        (["evacuate", NODE, "--drain"], ("POST", "/admin/nodes/evacuate", {"url": NODE, "drain": True})),
        (["load-adapter", "a", "/a"], ("POST", "/v1/load_lora_adapter", {"lora_name": "a", "lora_path": "/a"})),
        (
            ["unload-adapter", "a", "--base-model", "m"],
            ("POST", "/v1/unload_lora_adapter", {"lora_name": "a", "base_model_name": "m"}),
        ),
        (["reset-prefix-cache"], ("POST", "/reset_prefix_cache", None)),
    ],
)
def test_each_command_is_one_call_of_the_admin_api(
    argv: list[str], asked: tuple[str, str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """With the configured token; what the proxy says is printed."""
    proxy = Proxy()
    assert admin_command.main(argv, proxy.transport) == 0
    assert proxy.asked == [asked]
    assert NODE in capsys.readouterr().out


@pytest.mark.usefixtures("token_file")
def test_a_node_is_added_by_role_and_url(capsys: pytest.CaptureFixture[str]) -> None:
    """The answer is the node itself, shown as a row."""
    proxy = Proxy(201, VIEW)
    assert admin_command.main(["add", "decode", NODE], proxy.transport) == 0
    assert proxy.asked == [("POST", "/admin/nodes", {"url": NODE, "role": "decode"})]
    assert capsys.readouterr().out.splitlines()[1].split() == ["decode", NODE, "ready", "3", "m,lora"]


@pytest.mark.usefixtures("token_file")
@pytest.mark.parametrize(
    ("transport", "said"),
    [
        (Proxy(404, error_body("http://x is no member")).transport, "http://x is no member"),
        (Proxy(500, {}).transport, "answers 500"),
        (Proxy(200, b"<html>").transport, "is no Baton proxy"),
        (None, "http://127.0.0.1:9 does not answer"),  # a real refused connection
    ],
)
def test_a_refusal_is_one_sentence(
    transport: httpx.MockTransport | None, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["--url", "http://127.0.0.1:9", "nodes"]
    assert admin_command.main(argv, transport) == admin_command.EXIT_FAILED
    assert said in capsys.readouterr().err


class _Listed(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps({"nodes": [VIEW]}).encode())


@pytest.mark.usefixtures("token_file")
def test_the_token_goes_to_the_proxy_alone(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Not by way of the HTTP proxy that the environment names for the world outside."""
    for name in ("no_proxy", "NO_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    for name in ("http_proxy", "HTTP_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with answering(_Listed) as port:
        assert admin_command.main(["--url", f"http://127.0.0.1:{port}", "nodes"]) == 0
    assert NODE in capsys.readouterr().out


def test_without_a_token_file_nothing_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The setting and the flag are named; a file that cannot be read is, too."""
    monkeypatch.chdir(tmp_path)
    proxy = Proxy()
    assert admin_command.main(["nodes"], proxy.transport) == admin_command.EXIT_REFUSED
    assert "proxy.admin_token_file" in capsys.readouterr().err
    assert admin_command.main(["--token-file", "/no/such", "nodes"], proxy.transport) == admin_command.EXIT_REFUSED
    assert "/no/such" in capsys.readouterr().err
    assert proxy.asked == []


@pytest.mark.usefixtures("token_file")
def test_certificate_authorities_that_cannot_be_read_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The file that is not there, or is no certificate, and the environment's; in a sentence."""
    (tmp_path / "empty.pem").touch()
    for name in ("/no/such.pem", str(tmp_path / "empty.pem")):
        assert admin_command.main(["--ca-file", name, "nodes"]) == admin_command.EXIT_REFUSED
        assert name in capsys.readouterr().err
    monkeypatch.setenv("SSL_CERT_FILE", "/no/such.pem")
    assert admin_command.main(["--url", "https://127.0.0.1:9", "nodes"]) == admin_command.EXIT_REFUSED
    assert "SSL_CERT_FILE" in capsys.readouterr().err
