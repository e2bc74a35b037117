"""The proxy behind TLS, as a process: whole answers, streams, clients that leave or do not read, certificates that change."""

import asyncio
import json
import shutil
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.certificates import Authority
from tests.support.cluster import COMPLETION, until_true
from tests.support.fake_answers import events
from tests.support.fake_vllm import FakeVllm
from tests.support.proxy_process import proxy_process

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Proxy:
    process: asyncio.subprocess.Process
    port: int
    authority: Authority
    decode: FakeVllm

    def client(self, certificate: tuple[Path, Path] | None = None) -> httpx.AsyncClient:
        url = f"https://127.0.0.1:{self.port}"
        return httpx.AsyncClient(base_url=url, verify=self.authority.context(certificate), timeout=20)


@asynccontextmanager
async def proxy(tmp_path: Path, *, mutual: bool = False, settings: str = "") -> AsyncIterator[Proxy]:
    """Run a proxy process with TLS in front of two fake nodes."""
    authority, config = Authority(tmp_path), tmp_path / "baton.yaml"
    certificate, key = authority.sign("proxy")
    config.write_text(settings)
    more = ("--tls-client-ca-file", str(authority.path)) if mutual else ()
    async with proxy_process(
        tmp_path,
        *("--config", str(config), "--tls-cert-file", str(certificate), "--tls-key-file", str(key), *more),
        tls=authority.context(authority.sign("tester") if mutual else None),
    ) as running:
        yield Proxy(running.process, running.port, authority, running.decode[0])


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


async def test_answers_and_streams_come_over_tls(tmp_path: Path) -> None:
    """Byte for byte, on one connection; SIGTERM lets an open stream end, and the status is 0.

    Connections without a handshake, with plain HTTP or with nothing at all, hold up neither.
    """
    async with proxy(tmp_path) as running, running.client() as http, httpx.AsyncClient(timeout=20) as plain:
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


async def test_a_client_that_leaves_is_noticed_over_tls(tmp_path: Path) -> None:
    """Be it with TLS's goodbye or without; the decode leg ends."""
    async with proxy(tmp_path) as running:
        running.decode.fault = "hang"
        async with asked(running) as (_, writer):
            await until_true(lambda: running.decode.seen)
            writer.close()
            await until_true(lambda: running.decode.seen[0].cancelled)
        async with asked(running):
            await until_true(lambda: len(running.decode.seen) == 2)
        await until_true(lambda: running.decode.seen[1].cancelled)


async def test_a_client_that_does_not_read_over_tls_is_held_back_and_dropped(tmp_path: Path) -> None:
    """The decode node is not read on; after the time that a client may stall, both nodes are told."""
    async with proxy(tmp_path, settings="proxy: {client_stall_timeout_s: 1}") as running:
        running.decode.padding_bytes = 64 * 1024
        async with asked(running, max_tokens=800) as (_, writer):
            writer.transport.pause_reading()  # type: ignore[attr-defined]  # it can
            await until_true(lambda: running.decode.seen and running.decode.seen[0].cancelled, timeout_s=30)
            sent = running.decode.sent_bytes
        async with running.client() as http:
            series = (await http.get("/metrics")).text

    assert sent < 800 * 64 * 1024 * 0.8
    assert "baton_clients_dropped_total 1.0" in series


async def test_a_slow_reader_gets_all_of_its_last_answer_over_tls(tmp_path: Path) -> None:
    """Although the connection is to be closed behind it, and its goodbye takes longer than a stall may."""
    async with proxy(tmp_path, settings="proxy: {client_stall_timeout_s: 5}") as running:
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


async def test_a_client_that_does_not_say_goodbye_is_let_go(tmp_path: Path) -> None:
    """Its answer has been read and its connection was to be closed; TLS waits for a word of its own."""
    async with proxy(tmp_path, settings="proxy: {client_stall_timeout_s: 1}") as running:
        body = json.dumps(COMPLETION).encode()
        head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: %d\r\n\r\n"
        with socket.create_connection(("127.0.0.1", running.port)) as plain:
            raw = plain.dup()
            ends = await asyncio.to_thread(_read_to_the_end, running, plain, raw, head % len(body) + body)

    assert ends


def _read_to_the_end(running: Proxy, plain: socket.socket, raw: socket.socket, request: bytes) -> bool:
    """Ask, read the answer, and then watch the TCP connection without a word; return whether it ended."""
    raw.settimeout(20)
    with raw, running.authority.context().wrap_socket(plain, server_hostname="127.0.0.1") as encrypted:
        encrypted.sendall(request)
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


async def test_with_authorities_a_client_needs_a_certificate_of_theirs(tmp_path: Path) -> None:
    """A client without one, and a client with one of another authority, do not get in."""
    stranger = tmp_path / "stranger"
    stranger.mkdir()
    async with proxy(tmp_path, mutual=True) as running:
        for certificate in (None, Authority(stranger).sign("client")):
            async with running.client(certificate) as http:
                with pytest.raises(httpx.HTTPError):
                    await http.get("/health")
        async with running.client(running.authority.sign("client")) as http:
            got = await http.post("/v1/completions", json=COMPLETION)

    assert got.status_code == 200


async def test_a_new_certificate_is_shown_to_new_connections(tmp_path: Path) -> None:
    """Without a restart; a connection that is open goes on."""
    async with proxy(tmp_path) as running, running.client() as before:
        await before.get("/health")
        new = running.authority.sign("new")

        async def shown() -> bytes:
            _, writer = await asyncio.open_connection(
                "127.0.0.1", running.port, ssl=running.authority.context(), server_hostname="127.0.0.1"
            )
            certificate: bytes = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
            writer.close()
            return certificate

        old = await shown()
        for path, name in zip(new, ("proxy.pem", "proxy.key"), strict=True):
            shutil.copy(path, tmp_path / name)

        async def is_new() -> bool:
            return await shown() != old

        await until_true(is_new, timeout_s=20)
        still = await before.get("/health")

    assert still.status_code == 200
