"""The proxy behind TLS, as a process: whole answers, streams, clients that leave or do not read, certificates that change.

All tests share one proxy; the last one ends it.
"""

import asyncio
import json
import shutil
import signal
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from baton.contracts.configuration.schema import ProxyConfig
from baton.proxy.http_server.tls import context_of, files_of
from tests.support.certificates import Authority
from tests.support.cluster import COMPLETION, until, until_true
from tests.support.fake_answers import events
from tests.support.fake_vllm import FakeVllm
from tests.support.proxy_process import proxy_process

pytestmark = pytest.mark.asyncio(loop_scope="module")

MIB = 1 << 20
STALL_S = 5


@dataclass(frozen=True, slots=True)
class Proxy:
    process: asyncio.subprocess.Process
    port: int
    authority: Authority
    folder: Path  # of the certificate's files
    decode: FakeVllm

    def client(self) -> httpx.AsyncClient:
        url = f"https://127.0.0.1:{self.port}"
        return httpx.AsyncClient(base_url=url, verify=self.authority.context(), timeout=20)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Proxy]:
    """A proxy process with TLS in front of two fake nodes."""
    folder = tmp_path_factory.mktemp("proxy")
    authority, config = Authority(folder), folder / "baton.yaml"
    certificate, key = authority.sign("proxy")
    config.write_text(f"proxy: {{client_stall_timeout_s: {STALL_S}}}")
    flags = ("--config", str(config), "--tls-cert-file", str(certificate), "--tls-key-file", str(key))
    async with proxy_process(folder, *flags, tls=authority.context()) as made:
        yield Proxy(made.process, made.port, authority, folder, made.decode[0])


@pytest.fixture(autouse=True)
def _fresh(running: Proxy) -> None:
    running.decode.seen.clear()
    running.decode.fault, running.decode.padding_bytes = "", 0


@asynccontextmanager
async def asked(
    running: Proxy, *, close: bool = False, **changes: Any
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """Ask for a stream on a raw connection with small buffers."""
    body = json.dumps({**COMPLETION, "stream": True, **changes}).encode()
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
    sock.connect(("127.0.0.1", running.port))
    reader, writer = await asyncio.open_connection(
        sock=sock, ssl=running.authority.context(), server_hostname="127.0.0.1", limit=4096
    )
    try:
        how = b"connection: close\r\n" if close else b""
        head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\n%bcontent-length: %d\r\n\r\n" % (how, len(body))
        writer.write(head + body)
        yield reader, writer
    finally:
        writer.transport.abort()


async def test_with_authorities_a_client_needs_a_certificate(tmp_path: Path) -> None:
    """As the settings name them."""
    authority = Authority(tmp_path)
    certificate, key = authority.sign("proxy")
    named = ProxyConfig(tls_cert_file=certificate, tls_key_file=key, tls_client_ca_file=authority.path)
    files = files_of(named)
    assert files is not None
    context = context_of(files)

    assert (context.verify_mode, len(context.get_ca_certs())) == (ssl.CERT_REQUIRED, 1)


async def test_a_client_that_leaves_is_noticed_over_tls(running: Proxy) -> None:
    """Be it with TLS's goodbye or without; the decode leg ends."""
    running.decode.fault = "hang"
    async with asked(running) as (_, writer):
        await until_true(lambda: running.decode.seen)
        writer.close()
        await until_true(lambda: running.decode.seen[0].cancelled)
    async with asked(running):
        await until_true(lambda: len(running.decode.seen) == 2)
    await until_true(lambda: running.decode.seen[1].cancelled)


async def test_a_slow_reader_gets_all_of_its_last_answer_over_tls(running: Proxy) -> None:
    """Although the connection is to be closed behind it, and its goodbye takes longer than a stall may."""
    running.decode.padding_bytes = 12 * MIB
    async with asked(running, close=True, stream=False) as (reader, _):
        first = await reader.readuntil(b"\r\n\r\n")
        length, got = int(first.partition(b"content-length: ")[2].split(b"\r\n")[0]), 0
        for _ in range(70):  # the kernel tells of what is read in steps of megabytes, so some seconds apart
            await asyncio.sleep(0.1)
            got += len(await reader.read(MIB))
        async with asyncio.timeout(60):
            while part := await reader.read(MIB):
                got += len(part)

    assert got == length


async def test_clients_that_do_not_read_or_do_not_say_goodbye_are_let_go(running: Proxy) -> None:
    """The decode node is not read on for the first; after the time that a client may stall, both nodes are told.

    The other one's answer has been read and its connection was to be closed; TLS waits for a word of its own.
    """
    plain = socket.create_connection(("127.0.0.1", running.port))
    goodbye = asyncio.create_task(asyncio.to_thread(_read_to_the_end, running, plain))
    await until_true(lambda: running.decode.seen and running.decode.seen[0].finished)
    running.decode.padding_bytes, before = 64 * 1024, running.decode.sent_bytes
    async with asked(running, max_tokens=800) as (_, writer):
        writer.transport.pause_reading()  # type: ignore[attr-defined]  # it can
        await until_true(lambda: len(running.decode.seen) == 2 and running.decode.seen[1].cancelled, timeout_s=30)
        sent = running.decode.sent_bytes - before
    async with running.client() as http:
        series = (await http.get("/metrics")).text

    assert await goodbye, "the connection did not end"
    assert sent < 800 * 64 * 1024 * 0.8
    assert "baton_clients_dropped_total 1.0" in series


def _read_to_the_end(running: Proxy, plain: socket.socket) -> bool:
    """Ask, read the answer, and then watch the TCP connection without a word; return whether it ended."""
    body = json.dumps(COMPLETION).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(body)
    raw = plain.dup()
    raw.settimeout(20)
    with raw, running.authority.context().wrap_socket(plain, server_hostname="127.0.0.1") as encrypted:
        encrypted.sendall(head + body)
        while encrypted.recv(65536):
            pass
        try:
            while raw.recv(65536):
                pass
        except ConnectionError:
            return True
        except TimeoutError:
            return False
    return True


async def test_a_new_certificate_is_shown_to_new_connections(running: Proxy) -> None:
    """Without a restart; a connection that is open goes on."""

    async def shown() -> bytes:
        _, writer = await asyncio.open_connection(
            "127.0.0.1", running.port, ssl=running.authority.context(), server_hostname="127.0.0.1"
        )
        certificate: bytes = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        writer.close()
        return certificate

    async with running.client() as before:
        await before.get("/health")
        new, old = running.authority.sign("new"), await shown()
        for path, name in zip(new, ("proxy.pem", "proxy.key"), strict=True):
            shutil.copy(path, running.folder / name)
        await until(shown, lambda certificate: certificate != old)
        still = await before.get("/health")

    assert still.status_code == 200


async def test_answers_and_streams_come_over_tls(running: Proxy) -> None:
    """Byte for byte, on one connection; SIGTERM lets an open stream end, and the status is 0.

    Connections without a handshake, with plain HTTP or with nothing at all, hold up neither.
    """
    async with running.client() as http, httpx.AsyncClient(timeout=20) as plain:
        silent = socket.create_connection(("127.0.0.1", running.port))
        with pytest.raises(httpx.HTTPError):
            await plain.get(f"http://127.0.0.1:{running.port}/health")
        whole = await http.post("/v1/completions", json=COMPLETION)
        many = await asyncio.gather(
            *(http.post("/v1/completions", json={**COMPLETION, "stream": True}) for _ in range(8))
        )
        running.decode.token_delay_s = 0.3
        seen = len(running.decode.seen)
        last = asyncio.create_task(http.post("/v1/completions", json={**COMPLETION, "stream": True}))
        await until_true(lambda: len(running.decode.seen) > seen)
        running.process.send_signal(signal.SIGTERM)
        streams = [*many, await last]
        status = await asyncio.wait_for(running.process.wait(), 10)
        silent.close()

    assert whole.status_code == 200
    assert [each.content for each in streams] == [b"".join(events("/v1/completions", 3))] * 9
    assert status == 0
