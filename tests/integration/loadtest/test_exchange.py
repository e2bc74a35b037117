"""One request at a fake server: counts and kinds exact, no assertion on speed."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from baton.loadtest.client.exchange import Answered, Exchange, Timing
from baton.loadtest.client.http import Client, parse_address
from baton.loadtest.measures.record import CONNECT, CUT, EMPTY, ERROR_EVENT, MALFORMED, STATUS, TIMEOUT
from baton.loadtest.traffic.script import Ask, Form
from tests.integration.loadtest.saying import saying
from tests.support.cluster import until_true
from tests.support.fake_answers import MODEL, text_of
from tests.support.fake_openai import FakeOpenAI, Fault, serving

ASK = Ask(prompt=[1, 2, 3, 4], output_tokens=5, input_tokens=4)


@asynccontextmanager
async def exchange(url: str, *, chat: bool = False, timeout_s: float = 10) -> AsyncIterator[Exchange]:
    client = Client(parse_address(url), {"Authorization": "Bearer k"}, timeout_s)
    yield Exchange(client, Form(model=MODEL, chat=chat))
    client.close()


async def ask(asking: Exchange, what: Ask = ASK) -> Answered:
    return await asking.send(0, what, asking.form.body(what), Timing(time.perf_counter()))


@pytest.mark.parametrize(("chat", "usage"), [(False, True), (True, True), (False, False)])
async def test_an_answer_is_counted_as_the_server_counts(chat: bool, usage: bool) -> None:
    """Text, tokens and headers are there; the path is Baton's. A server's TTFT and ITL are lower bounds of what is measured.

    Without usage events with text are counted, and the input is as long as was planned.
    """
    fake = FakeOpenAI(ttft_s=0.05, itl_s=0.02)
    fake.path, fake.usage = "disaggregated", usage
    what = Ask(prompt=[{"role": "user", "content": "x"}], output_tokens=5) if chat else ASK
    async with serving(fake) as url, exchange(url, chat=chat) as asking:
        record, text = await ask(asking, what)

    assert (record.error, record.status, record.path) == ("", 200, "disaggregated")
    assert (record.input_tokens, record.output_tokens, record.asked_output_tokens) == (3 if chat else 4, 5, 5)
    assert len(record.itls_s) == (5 if chat else 4)
    assert text == "".join(map(text_of, range(5)))
    assert fake.headers[0]["authorization"] == "Bearer k"
    assert record.ttft_s is not None
    assert record.latency_s == pytest.approx(record.ttft_s + sum(record.itls_s))
    assert record.ttft_s >= 0.05
    assert record.ttft_s + sum(record.itls_s) >= 0.05 + 4 * 0.02 - 0.001


@pytest.mark.parametrize(
    ("fault", "kind", "detail"),
    [
        ("status", STATUS, "the fake is overloaded"),
        ("drop", CONNECT, "closed the connection"),
        ("no token", EMPTY, ""),
        ("cut", CUT, "closed the connection"),
        ("error event", ERROR_EVENT, "the engine died"),
        ("garbage", MALFORMED, "JSON"),
        ("hang", TIMEOUT, "in time"),
    ],
)
async def test_each_failure_has_its_kind(fault: Fault, kind: str, detail: str) -> None:
    """None passes for an answer, and the next request is well."""
    fake = FakeOpenAI()
    fake.faults = {0: fault}
    async with serving(fake) as url, exchange(url, timeout_s=0.5 if fault == "hang" else 10) as asking:
        record, _ = await ask(asking)
        after, _ = await ask(asking)

    assert record.error == kind
    assert detail in record.detail
    assert after.ok
    assert len(fake.bodies) == 2, "a request is sent once"


async def test_connections_are_used_again() -> None:
    """One after the other needs one connection. A server that is not there any more is a record like any other."""
    fake = FakeOpenAI()
    async with serving(fake) as url, exchange(url) as asking:
        for _ in range(3):
            assert (await ask(asking))[0].ok
    async with exchange(url) as asking:
        record, _ = await ask(asking)

    assert len(fake.clients) == 1
    assert (record.error, record.status) == (CONNECT, None)


async def test_a_cancelled_request_closes_its_connection() -> None:
    """The server sees that the client does not wait any more."""
    fake = FakeOpenAI()
    fake.faults = {0: "hang"}
    async with serving(fake) as url, exchange(url) as asking:
        task = asyncio.create_task(ask(asking))
        await fake.began.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until_true(lambda: not fake.open)


EVENTS = b'data: {"choices": [{"text": "x"}]}\n\ndata: [DONE]\n\n'
CHUNK = b"%x\r\n%s\r\n" % (len(EVENTS), EVENTS)


@pytest.mark.parametrize(
    ("answer", "error", "said"),
    [
        pytest.param(b"HTTP/1.0 200 OK\r\n\r\n" + EVENTS, "", "x", id="HTTP/1.0 knows no other end"),
        pytest.param(b"HTTP/1.0 200 OK\r\n\r\n", EMPTY, "", id="nothing was said"),
        pytest.param(
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + CHUNK,
            "",
            "x",
            id="all was said, and HTTP's own end is missing",
        ),
        pytest.param(b"SSH-2.0-OpenSSH_9\r\n", MALFORMED, "", id="a wrong port speaks another protocol"),
    ],
)
async def test_a_body_may_end_with_its_connection(answer: bytes, error: str, said: str) -> None:
    async with saying(answer) as url, exchange(url) as asking:
        record, text = await ask(asking)

    assert (record.error, text) == (error, said)


async def test_a_name_is_looked_up_once_and_all_its_addresses_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """No server listens at the first one."""
    looked_up = []

    async def getaddrinfo(host: str, port: int, **_: object) -> list[object]:
        looked_up.append(host)
        return [(0, 0, 0, "", ("127.0.0.2", port)), (0, 0, 0, "", ("127.0.0.1", port))]

    async with serving(FakeOpenAI()) as url, exchange(url.replace("127.0.0.1", "server.test")) as asking:
        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo)
        got = await asyncio.gather(*(ask(asking) for _ in range(4)))
        monkeypatch.undo()

    assert [answered.record.error for answered in got] == [""] * 4
    assert looked_up.count("server.test") == 1
