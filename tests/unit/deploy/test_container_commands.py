"""`baton health` and `baton secret`: what containers run beside the proxy and the nodes."""

import stat
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from baton.contracts.secret import read_secret
from baton.deploy import health_command, secret_command
from baton.deploy.cli import main
from baton.proxy.admin.token import read_admin_token
from tests.support.ports import free_port
from tests.support.processes import answering


class _Part(BaseHTTPRequestHandler):
    """Is alive and not ready."""

    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/health" else 503)
        self.end_headers()
        self.wfile.write(b"{}")


@pytest.fixture
def port() -> Iterator[int]:
    with answering(_Part) as found:
        yield found


@pytest.fixture(autouse=True)
def nothing_configured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing listens at any default port, and there is no file."""
    monkeypatch.chdir(tmp_path)
    for name in ("PROXY", "PREFILL_NODE", "DECODE_NODE"):
        monkeypatch.setenv(f"BATON_{name}_PORT", str(free_port()))


@pytest.mark.parametrize("section", ["PROXY", "DECODE_NODE"])
def test_health_is_asked_where_the_configuration_says(
    section: str, port: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever listens everywhere is asked on loopback; any one of the named parts does."""
    monkeypatch.setenv(f"BATON_{section}_PORT", str(port))
    monkeypatch.setenv(f"BATON_{section}_HOST", "0.0.0.0")
    part = section.partition("_")[0].lower()

    assert main(["health", part]) == 0
    assert main(["health", "prefill", part]) == 0
    assert main(["health", "prefill"]) == health_command.EXIT_UNHEALTHY
    assert "prefill on port" in capsys.readouterr().err


def test_readiness_is_more_than_health(
    port: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A proxy without nodes is alive, and not ready. One with a wrong configuration is not well, and says what is wrong."""
    monkeypatch.setenv("BATON_PROXY_PORT", str(port))

    assert main(["health", "proxy"]) == 0
    assert main(["health", "proxy", "--ready"]) == health_command.EXIT_UNHEALTHY == 1
    assert "/ready answers 503" in capsys.readouterr().err
    monkeypatch.setenv("BATON_PROXY_PORTT", "1")
    assert main(["health", "proxy"]) == health_command.EXIT_UNHEALTHY
    assert "did you mean BATON_PROXY_PORT" in capsys.readouterr().err


def test_secrets_are_made_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each file has its own, only its owner reads it, both uses accept it, and what is there stays."""
    cluster, admin = tmp_path / "cluster", tmp_path / "admin"

    assert main(["secret", str(cluster), str(admin)]) == 0
    first = cluster.read_text()
    assert main(["secret", str(cluster), str(admin)]) == 0

    assert first == cluster.read_text() != admin.read_text()
    assert stat.S_IMODE(cluster.stat().st_mode) == 0o600
    assert read_secret(cluster).values
    assert read_admin_token(admin).opens(f"Bearer {admin.read_text().strip()}")
    assert capsys.readouterr().out.count("was there") == 2
    assert {file.name for file in tmp_path.iterdir()} == {"cluster", "admin"}


def test_a_file_that_another_process_makes_first_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two that start at once agree on one secret."""
    file = tmp_path / "cluster"

    def other_process_first() -> str:
        file.write_text("theirs")
        return "ours"

    monkeypatch.setattr(secret_command, "generate_secret", other_process_first)

    assert not secret_command.make(file)
    assert file.read_text() == "theirs"


def test_a_folder_that_is_not_there_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["secret", str(tmp_path / "none" / "file")]) == secret_command.EXIT_FAILED
    assert "No such file" in capsys.readouterr().err
