"""How the launcher asks a process whether it is ready."""

import json
import socket
from http.server import BaseHTTPRequestHandler
from pathlib import Path

from baton.deploy.launcher import is_ready
from baton.deploy.stack import Listener, Member
from tests.support.certificates import Authority
from tests.support.ports import free_port
from tests.support.processes import answering


def member(port: int, ready_path: str, *, is_encrypted: bool) -> Member:
    listener = Listener(host="127.0.0.1", port=port, flag="--port")
    return Member(
        name="proxy", module="m", argv=(), listeners=(listener,), ready_path=ready_path, is_encrypted=is_encrypted
    )


class _Ready(BaseHTTPRequestHandler):
    """Ready with one node in use, and at another path with one more that is not."""

    def do_GET(self) -> None:
        states = {"/ready": ("ready",), "/early": ("ready", "unknown")}.get(self.path, ())
        self.send_response(200 if states else 503)
        self.end_headers()
        self.wfile.write(json.dumps({"ready": True, "nodes": [{"state": state} for state in states]}).encode())


def test_a_proxy_behind_tls_can_be_asked(tmp_path: Path) -> None:
    """Whichever authority signed its certificate. It is waited for until it uses all nodes.

    It answers 200 before that; its first answer would be made by a decode node alone.
    """
    with answering(_Ready, Authority(tmp_path).sign("proxy")) as port:
        asked = {path: is_ready(member(port, path, is_encrypted=True)) for path in ("/ready", "/early", "/other")}

    assert asked == {"/ready": True, "/early": False, "/other": False}


def test_where_we_may_not_ask_an_open_port_will_do() -> None:
    """A proxy that wants certificates of its clients."""
    port = free_port()
    with socket.create_server(("127.0.0.1", port)):
        listens = is_ready(member(port, "", is_encrypted=True))

    assert listens
    assert not is_ready(member(port, "", is_encrypted=True))
