"""`python -m baton.proxy` as a process: one segment for head and first bytes, a clean stop, clear refusals."""

import asyncio
import json
import os
import signal
import socket
import tempfile
from pathlib import Path
from typing import Any

import httpx
import pytest

from baton.proxy import __main__, server
from tests.support.cluster import COMPLETION, until_true
from tests.support.fake_answers import events
from tests.support.proxy_process import proxy_process, write_secret


async def test_head_and_first_bytes_arrive_together_and_sigterm_does_not_wait_for_ever(tmp_path: Path) -> None:
    """One read of the socket has both, although D's second event is far away. A request that hangs is told that the proxy stops; its legs are closed.

    By default there is no access log, and what is logged of a node has its URL.
    """
    async with proxy_process(tmp_path) as running:
        decode = running.decode[0]
        decode.token_delay_s = 1.0
        body = json.dumps({**COMPLETION, "stream": True}).encode()
        loop = asyncio.get_running_loop()
        with socket.create_connection(("127.0.0.1", running.port)) as sock:
            sock.setblocking(False)
            head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body)
            await loop.sock_sendall(sock, head + body)
            first = await loop.sock_recv(sock, 65536)
        decode.fault = "hang"
        async with httpx.AsyncClient(timeout=10) as http:
            request = asyncio.create_task(http.post(f"{running.url}/v1/completions", json=COMPLETION))
            await until_true(lambda: len(decode.seen) == 2)
            running.process.send_signal(signal.SIGTERM)
            got = await request
        await until_true(lambda: decode.seen[1].cancelled)
        status = await asyncio.wait_for(running.process.wait(), 10)
        log = running.log.read_text()

    assert first.startswith(b"HTTP/1.1 200 OK\r\n")
    assert next(events("/v1/completions", 3)) in first
    assert status == 0
    assert got.status_code == 503
    assert got.json()["error"]["message"] == "the proxy is stopping"
    assert f"url={decode.url}" in log
    assert "baton.proxy.access" not in log
    assert "request_id" not in log


@pytest.fixture
def _in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """What `main` changes in its process stays as it is for the other tests."""
    monkeypatch.setattr(__main__, "raise_limit", lambda: None)
    monkeypatch.setattr(server, "configure", lambda *_: None)


@pytest.mark.usefixtures("_in_this_process")
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--admin-token-file", "/nowhere"), "cannot read the admin token from /nowhere"),
        (("--prefill", "dns://prefill"), "'dns://prefill' is not of the form dns://name:port"),
        (("--secret-file", ""), "cluster.secret_file is not set"),
        (("--tls-cert-file", "/nowhere"), "cannot read the TLS file /nowhere: No such file"),
        (("--tls-key-file", "/nowhere"), "proxy.tls_key_file is set and proxy.tls_cert_file is not"),
        (("--api-keys-file", "/nowhere"), "cannot read the API keys from /nowhere: No such file"),
        ((), "Address already in use; choose another port with --port"),
        (("--workers", "2"), "Address already in use; choose another port with --port"),
    ],
)
def test_a_setting_that_cannot_be_followed_refuses_to_start(
    arguments: tuple[str, ...], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One sentence on standard error, and status 2."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])

        assert __main__.main(["--port", port, "--secret-file", write_secret(tmp_path), *arguments]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.usefixtures("_in_this_process")
def test_a_proxy_that_is_told_to_stop_before_it_has_started_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGTERM between its temporary directory and its first worker."""
    folder = Path(tempfile.mkdtemp(dir="/tmp"))  # its name leaves room for those of sockets

    def listen(*_: Any) -> None:
        assert list(folder.iterdir())
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setattr(server, "listen_on", listen)
    before = signal.signal(signal.SIGTERM, lambda *_: None)  # it would end the tests where the proxy leaves it
    try:
        with pytest.raises(SystemExit) as ended:
            __main__.main(["--workers", "2", "--secret-file", write_secret(tmp_path), "--decode", "http://127.0.0.1:1"])
    finally:
        signal.signal(signal.SIGTERM, before)

    assert ended.value.code == 0
    folder.rmdir()  # it is empty
