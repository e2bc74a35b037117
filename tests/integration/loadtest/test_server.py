"""The first word with a server, and what a terminal shows."""

import asyncio
import os
import pty
import signal
import sys
from collections.abc import Awaitable, Callable

import pytest

from baton.loadtest.client.fetch import fetch, first_model, server_version
from baton.loadtest.client.http import Address, parse_address
from baton.loadtest.errors import RunError
from tests.integration.loadtest.saying import saying
from tests.support.cluster import until_true
from tests.support.fake_openai import FakeOpenAI, serving


async def asked(
    question: Callable[[Address, dict[str, str], float], Awaitable[str]], answer: bytes, timeout_s: float = 30
) -> str:
    async with saying(answer, stays=timeout_s < 1) as url:
        return await question(parse_address(url), {}, timeout_s)


def answering(body: bytes, status: bytes = b"200 OK") -> bytes:
    return b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n%s" % (status, len(body), body)


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        (b'{"version": "0.32.0"}', b"200 OK", "vLLM 0.32.0"),
        (b'{"version": "0.32.0", "baton": "0.1.0"}', b"200 OK", "vLLM 0.32.0, Baton 0.1.0"),
        (b"{}", b"404 Not Found", ""),
        (b"[]", b"200 OK", ""),
    ],
)
async def test_a_report_names_the_servers_version_if_it_is_told(body: bytes, status: bytes, said: str) -> None:
    assert await asked(server_version, answering(body, status)) == said


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (answering(b'{"data": []}'), "offers no model; name one with --model"),
        (answering(b"<html>"), "is no list of models"),
        (answering(b'{"error": {"message": "bad key"}}', b"401 Unauthorized"), "answered 401: bad key"),
        (b"", "no server at"),
        (b"SSH-2.0\r\n", "no server at .*: no HTTP"),
    ],
)
async def test_what_is_no_openai_server_is_named(answer: bytes, words: str) -> None:
    """One sentence, before any request is sent."""
    with pytest.raises(RunError, match=words):
        await asked(first_model, answer)


async def test_a_silent_server_is_not_waited_for() -> None:
    with pytest.raises(RunError, match=r"no answer from .* in 0\.5 s"):
        await asked(first_model, b"", timeout_s=0.5)


async def test_a_provisional_answer_is_none() -> None:
    """100 Continue comes before the answer."""
    body = b'{"data": [{"id": "m"}]}'

    assert await asked(first_model, b"HTTP/1.1 100 Continue\r\n\r\n" + answering(body)) == "m"
    with pytest.raises(RunError):
        await asked(first_model, b"HTTP/1.1 100 Continue\r\n\r\n")


async def test_any_status_will_do_where_only_presence_is_asked() -> None:
    """A gateway may have no list of models."""
    async with serving(FakeOpenAI()) as url:
        assert await fetch(parse_address(url), "/metrics", {}, 5, any_status=True)


async def test_a_terminal_shows_how_far_it_is() -> None:
    """On standard error, and only there; SIGTERM ends it as Ctrl-C does."""
    fake = FakeOpenAI()
    fake.faults = dict.fromkeys(range(2, 99), "hang")
    ours, theirs = pty.openpty()
    async with serving(fake) as url:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "baton.loadtest", "run", "--url", url, "--requests", "9"),
            stdout=asyncio.subprocess.PIPE,
            stderr=theirs,
        )
        await until_true(lambda: len(fake.bodies) == 3, timeout_s=30)
        await asyncio.sleep(0.8)  # the line is drawn every half second
        process.send_signal(signal.SIGTERM)
        stdout, _ = await asyncio.wait_for(process.communicate(), 30)
    os.close(theirs)
    shown = os.read(ours, 65536)
    os.close(ours)

    assert b"1 user: 2/9 requests, 1 in flight, 0 failed" in shown
    assert b"in flight" not in stdout
    assert process.returncode == 130
