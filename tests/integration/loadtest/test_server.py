"""The first word with a server."""

from collections.abc import Awaitable, Callable

import pytest

from baton.loadtest.client.fetch import first_model, server_version
from baton.loadtest.client.http import Address, parse_address
from baton.loadtest.errors import RunError
from baton.loadtest.plan.calibrate_command import node_state
from tests.integration.loadtest.saying import saying


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
        (b'{"version": "\xff"}', b"200 OK", ""),
        (b"[" * 100_000, b"200 OK", ""),
    ],
)
async def test_a_report_names_the_servers_version_if_it_is_told(body: bytes, status: bytes, said: str) -> None:
    assert await asked(server_version, answering(body, status)) == said


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (answering(b'{"data": []}'), "offers no model; name one with --model"),
        (answering(b"<html>"), "is no list of models"),
        (answering(b'{"data": [{"id": "\xff"}]}'), "is no list of models"),
        (answering(b'{"more": ' + b"[" * 100_000), "is no list of models"),
        (answering(b'{"error": {"message": "bad key"}}', b"401 Unauthorized"), "answered 401: bad key"),
        (b"", "no server at"),
        (b"HTTP/1.1 100 Continue\r\n\r\n", "no server at"),  # another answer was to come
        (b"", r"no answer from .* in 0\.1 s"),  # it is silent
    ],
)
async def test_what_is_no_openai_server_is_named(answer: bytes, words: str) -> None:
    """One sentence, before any request is sent."""
    with pytest.raises(RunError, match=words):
        await asked(first_model, answer, 0.1 if "in 0" in words else 30)


@pytest.mark.parametrize("body", [b"<html>", b"\xff", b"vllm:cache_config_info 1.0\n"])
async def test_what_has_no_metrics_is_named(body: bytes) -> None:
    """Before a calibration begins. The third is of a server that does not say how large its cache is."""
    async with saying(answering(body)) as url:
        with pytest.raises(RunError, match=f"{url} has no metrics of a vLLM server"):
            await node_state(url)


async def test_a_provisional_answer_is_none() -> None:
    """100 Continue comes before the answer."""
    answer = answering(b'{"data": [{"id": "m"}]}')

    assert await asked(first_model, b"HTTP/1.1 100 Continue\r\n\r\n" + answer) == "m"
