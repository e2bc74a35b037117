"""`python -m baton.proxy` as a process: one segment for head and first bytes, a clean stop, clear refusals."""

import asyncio
import json
import signal
import socket
from pathlib import Path

import httpx
import pytest

from baton.proxy import __main__
from tests.support.cluster import COMPLETION, until_true
from tests.support.fake_answers import events
from tests.support.ports import free_port
from tests.support.proxy_process import proxy_process, spawn, write_secret


async def test_head_and_first_bytes_arrive_together(tmp_path: Path) -> None:
    """One read of the socket has both, although D's second event is far away."""
    async with proxy_process(tmp_path) as running:
        running.decode[0].token_delay_s = 1.0
        body = json.dumps({**COMPLETION, "stream": True}).encode()
        loop = asyncio.get_running_loop()
        with socket.create_connection(("127.0.0.1", running.port)) as sock:
            sock.setblocking(False)
            head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body)
            await loop.sock_sendall(sock, head + body)
            first = await loop.sock_recv(sock, 65536)

    assert first.startswith(b"HTTP/1.1 200 OK\r\n")
    assert next(events("/v1/completions", 3)) in first


async def test_sigterm_does_not_wait_for_ever(tmp_path: Path) -> None:
    """A request that hangs is told that the proxy stops; its legs are closed."""
    async with proxy_process(tmp_path) as running:
        decode = running.decode[0]
        decode.fault = "hang"
        async with httpx.AsyncClient(timeout=10) as http:
            request = asyncio.create_task(http.post(f"{running.url}/v1/completions", json=COMPLETION))
            await until_true(lambda: decode.seen)
            running.process.send_signal(signal.SIGTERM)
            got = await request
        await until_true(lambda: decode.seen[0].cancelled)

        assert await asyncio.wait_for(running.process.wait(), 10) == 0
    assert got.status_code == 503
    assert got.json()["error"]["message"] == "the proxy is stopping"


async def test_a_port_that_is_taken_refuses_to_start(tmp_path: Path) -> None:
    """With the flag that chooses another."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        process = await spawn("--port", port, "--secret-file", write_secret(tmp_path))
        _, stderr = await process.communicate()

    assert process.returncode == 2
    assert f"cannot listen on 127.0.0.1:{port}: Address already in use; choose another port with --port" in str(stderr)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--admin-token-file", "/nowhere"), "cannot read the admin token from /nowhere"),
        (("--prefill", "dns://prefill"), "'dns://prefill' is not of the form dns://name:port"),
        (("--secret-file", ""), "cluster.secret_file is not set"),
        (("--tls-cert-file", "/nowhere"), "cannot read the TLS file /nowhere: No such file"),
        (("--tls-key-file", "/nowhere"), "proxy.tls_key_file is set and proxy.tls_cert_file is not"),
        (("--api-keys-file", "/nowhere"), "cannot read the API keys from /nowhere: No such file"),
    ],
)
def test_a_setting_that_cannot_be_followed_refuses_to_start(
    arguments: tuple[str, ...],
    words: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One sentence on standard error, and status 2."""
    monkeypatch.setattr(__main__, "raise_limit", lambda: None)  # it would be raised for the other tests, too

    assert __main__.main(["--port", str(free_port()), "--secret-file", write_secret(tmp_path), *arguments]) == 2
    assert words in capsys.readouterr().err
