import json
import logging
import socket
import time
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import httpx
import pytest

from baton.contracts.configuration.schema import RolesConfig
from baton.contracts.http import error_body
from baton.deploy.roles import command
from baton.deploy.roles.command import Controller, addresses
from baton.deploy.roles.fleet import FOLLOWS_S, SilentError
from tests.support.processes import answering
from tests.unit.deploy.roles.test_fleet import seen, state

RULES = RolesConfig(looks=1, cooldown_s=30.0)
A, B = "http://a:8000", "http://b:8000"
BUSY = (
    seen("prefill", "http://p", prefill_load=1.5),
    *(seen("decode", f"http://d{number}", decode_load=0.1) for number in (1, 2)),
)


class Proxies:
    """Answer as they are told to, and note orders."""

    def __init__(self, **answers: Any) -> None:
        self.answers = answers  # by host: a state, a status, or an error
        self.refusals: dict[str, int] = {}
        self.orders: list[tuple[str, dict[str, Any]]] = []
        self.transport = httpx.MockTransport(self._answer)

    def controller(self, *proxies: str) -> Controller:
        return Controller(httpx.Client(transport=self.transport), proxies, RULES)

    def _answer(self, request: httpx.Request) -> httpx.Response:
        host = request.url.host
        if request.method == "POST":
            self.orders.append((host, json.loads(request.content)))
            status = self.refusals.get(host, 200)
            return httpx.Response(status, json={} if status == 200 else error_body("no", code=status))
        found = self.answers[host]
        if isinstance(found, Exception):
            raise found
        if isinstance(found, int):
            return httpx.Response(found, json=error_body("no", code=found))
        return httpx.Response(200, json=found.model_dump() if hasattr(found, "model_dump") else found)


def test_all_proxies_are_told_of_a_change(caplog: pytest.LogCaptureFixture) -> None:
    """With the cool-down, in which a proxy that knows of another change refuses; and the log says why."""
    proxies = Proxies(a=state(*BUSY), b=state(*BUSY))
    with caplog.at_level(logging.INFO):
        proxies.controller(B, A).check_load()

    order = {"url": "http://d1", "role": "prefill", "unchanged_for_s": 30.0, "ago_s": 0.0}
    assert proxies.orders == [("a", order), ("b", order)]
    (said,) = (record for record in caplog.records if "changes its role" in record.message)
    figures = {name: said.__dict__[name] for name in ("prefill_load", "decode_load", "worst", "predicted")}
    assert figures == {"prefill_load": 3.0, "decode_load": 0.2, "worst": 3.0, "predicted": 1.5}


def test_a_refused_order_goes_no_further() -> None:
    """Another controller was first, for instance; and the cool-down has begun here as well."""
    proxies = Proxies(a=state(*BUSY), b=state(*BUSY))
    proxies.refusals["a"] = 409
    controller = proxies.controller(A, B)
    for _ in range(3):
        controller.check_load()

    assert [host for host, _ in proxies.orders] == ["a"]


@pytest.mark.parametrize(
    "answer",
    [httpx.ConnectError("refused"), httpx.ReadTimeout("late"), 503, {"nodes": []}, state(*BUSY, pid=None)],
    ids=["gone", "late", "503", "of another version", "a worker is silent"],
)
def test_a_proxy_that_does_not_answer_stops_all_orders(answer: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Silence is not load. It is told once, not at each look."""
    proxies = Proxies(a=state(*BUSY), b=answer)
    controller = proxies.controller(A, B)
    for _ in range(3):
        controller.check_load()

    assert proxies.orders == []
    assert [record.message for record in caplog.records if record.name != "httpx"] == ["nothing is ordered"]


def test_a_proxy_that_differs_is_told_before_anything_else() -> None:
    begun = state(*BUSY)
    changed = state(BUSY[0], BUSY[1].model_copy(update={"role": "prefill"}), BUSY[2], unchanged_s=99.0)
    proxies = Proxies(a=begun, b=changed)
    proxies.controller(A, B).check_load()

    order = {"url": "http://d1", "role": "prefill", "unchanged_for_s": 0.0, "ago_s": 99.0 + FOLLOWS_S}
    assert proxies.orders == [("a", order)]


def test_a_proxy_that_refuses_one_order_is_told_the_others() -> None:
    """A role's only node cannot leave it before another one has come."""
    begun = state(BUSY[0], *BUSY[1:])
    others = [node.model_copy(update={"role": "prefill"}) for node in BUSY[1:]]
    changed = state(BUSY[0].model_copy(update={"role": "decode"}), *others, unchanged_s=99.0)
    proxies = Proxies(a=begun, b=changed)
    proxies.refusals["a"] = 409
    proxies.controller(A, B).check_load()

    assert [body["url"] for _, body in proxies.orders] == [node.url for node in BUSY]


def test_a_name_stands_for_all_its_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "look_up", lambda host, port: ["10.0.0.1", "::1"])
    assert addresses(["dns://proxies:8000", f"{A}/"]) == ["http://10.0.0.1:8000", "http://[::1]:8000", A]

    monkeypatch.setattr(command, "look_up", Mock(side_effect=socket.gaierror(-2, "unknown")))
    with pytest.raises(SilentError):
        addresses(["dns://proxies:8000"])


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        ([], "admin_token_file"),
        (["--token-file", "missing"], "missing"),
        (["--token-file", "token", "--proxies", "a:8000"], "http://host:port"),
        (["--token-file", "token", "--margin", "2"], "margin"),
        (["--token-file", "token", "--ca-file", "/no/such.pem"], "/no/such.pem"),
    ],
)
def test_what_cannot_be_is_refused_at_once(
    argv: list[str],
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "token").write_text("a token")
    monkeypatch.chdir(tmp_path)

    assert command.main(argv) == command.EXIT_REFUSED
    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize("status", [401, 403])
def test_the_command_ends_where_the_token_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], status: int
) -> None:
    """Without it no look can succeed."""
    (tmp_path / "token").write_text("a token\n")
    monkeypatch.setattr(command, "configure", lambda *_: None)
    argv = ["--token-file", str(tmp_path / "token"), "--proxies", A]

    assert command.main(argv, Proxies(a=status).transport) == command.EXIT_FAILED
    assert "does not take the admin token" in capsys.readouterr().err


class _Refusing(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(401)
        self.end_headers()
        self.wfile.write(b"{}")


def test_the_token_goes_to_the_proxies_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not by way of the HTTP proxy that the environment names for the world outside."""
    (tmp_path / "token").write_text("a token\n")
    monkeypatch.setattr(command, "configure", lambda *_: None)
    monkeypatch.setattr(time, "sleep", Mock(side_effect=AssertionError("it was not asked itself")))
    for name in ("no_proxy", "NO_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    for name in ("http_proxy", "HTTP_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")

    with answering(_Refusing) as port:
        argv = ["--token-file", str(tmp_path / "token"), "--proxies", f"http://127.0.0.1:{port}"]
        assert command.main(argv) == command.EXIT_FAILED
