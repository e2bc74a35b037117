"""A request that is watched, and one that is not."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from unittest.mock import ANY, Mock, call

import pytest

from baton.contracts.configuration.schema import ProxyConfig
from baton.proxy.dashboard import recorder
from baton.proxy.dashboard.recorder import RequestRecorder
from baton.proxy.dashboard.watched import MAX_LEGS, WatchedTrace
from baton.proxy.http_server.connection_budget import ConnectionBudget
from baton.proxy.response.client_response import ClientResponse
from baton.proxy.response.request_record import RequestRecord
from baton.proxy.telemetry.metrics import Metrics
from baton.proxy.telemetry.request_telemetry import RequestTelemetry
from baton.proxy.tracing.traces import Leg, Trace
from baton.proxy.tracing.tracing import Tracing


def begin(telemetry: RequestTelemetry, name: str = "r", trace: Trace | None = None) -> RequestRecord:
    if trace is not None:
        telemetry.tracing.begin = lambda *_: trace  # type: ignore[method-assign]
    return telemetry.begin_record({"headers": [], "method": "POST"}, "/v1/x", name)


def response(record: RequestRecord) -> ClientResponse:
    return ClientResponse(Mock(), Mock(), ConnectionBudget(lambda: 100, lambda: None).claim(), record)


@asynccontextmanager
async def watching() -> AsyncIterator[tuple[RequestTelemetry, RequestRecorder]]:
    """A recorder that a page of the dashboard has just looked at."""
    telemetry = RequestTelemetry(ProxyConfig(), Metrics(), Tracing())
    made = RequestRecorder(telemetry)
    made.look()
    yield telemetry, made
    made.stop()


async def test_no_page_looks_and_nothing_is_noted() -> None:
    async with watching() as (telemetry, made):
        watched = begin(telemetry)
        made.stop()
        plain = begin(telemetry)

        assert [isinstance(each.trace, WatchedTrace) for each in (watched, plain)] == [True, False]
        assert made.shown() == {"live": [], "live_total": 0, "recent": []}


async def test_a_look_ends_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page that is closed says nothing; a request that ends then is not kept."""
    monkeypatch.setattr(recorder, "LOOK_S", 0.01)
    async with watching() as (telemetry, made):
        late = begin(telemetry)
        while made.is_watched:  # noqa: ASYNC110  # its end sets no event
            await asyncio.sleep(0.01)
        late.trace.end(200, failed=False)

        assert telemetry.listeners == []
        assert made.shown()["recent"] == []


async def test_a_stream_is_followed_through_its_phases() -> None:
    """Waiting, prefill, decode, streaming, ended: with its legs, its chunks and the mean gap between them, and no text."""
    async with watching() as (telemetry, made):
        watched = begin(telemetry)
        phases = [made.shown()["live"][0]["phase"]]
        watched.attempts, watched.prefill_url, watched.decode_url = 1, "http://p", "http://d"
        decode, prefill = watched.trace.leg("decode", "http://d"), watched.trace.leg("prefill", "http://p")
        phases.append(made.shown()["live"][0]["phase"])
        prefill.end()
        phases.append(made.shown()["live"][0]["phase"])
        client = response(watched)
        client.begin_stream(200, [(b"x-secret", b"the header")], b"data: the text 1\n\n")
        decode.event("first bytes")
        phases.append(made.shown()["live"][0]["phase"])
        for chunk in (b"data: the text 2\n\n", b"", b"data: the text 3\n\n"):
            client.write(chunk)
        decode.end()
        watched.trace.end(200, failed=False)
        shown = made.shown()

    (ended,) = shown["recent"]
    assert phases == ["waiting", "prefill", "decode", "streaming"]
    assert (shown["live"], shown["live_total"], ended["phase"]) == ([], 0, "ended")
    assert (ended["chunks"], ended["status"], ended["transfer"]) == (3, 200, "")
    assert 0 < ended["itl_s"] <= ended["lasted_s"]
    assert [leg[:2] for leg in ended["legs"]] == [["decode", "http://d"], ["prefill", "http://p"]]
    assert ended["legs"][0][2] <= ended["legs"][0][3] <= ended["legs"][0][4]
    assert ended["legs"][1][3] is None
    assert "the text" not in str(shown)
    assert "the header" not in str(shown)


async def test_a_trace_hears_what_it_would_have_heard() -> None:
    """Watching does not take a request's spans away, nor the header that its legs carry."""
    async with watching() as (telemetry, _):
        told = Mock(spec=Trace, line=b"traceparent: x\r\n", trace_id="t")
        told.leg.return_value = Leg()
        watched = begin(telemetry, trace=told)
        watched.let_in(watched.arrived_s)
        watched.trace.leg("decode", "u").end("cut")
        watched.trace.event("retry", leg="decode")
        watched.trace.end(502, failed=True)

    assert told.mock_calls == [
        call.waited(ANY),
        call.leg("decode", "u"),
        call.event("retry", leg="decode"),
        call.end(502, failed=True),
    ]
    assert (watched.trace.line, watched.trace.trace_id) == (told.line, "t")


async def test_what_is_watched_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """So many requests at once, so many shown, so many remembered; so many legs of each."""
    for name, most in {"MOST_WATCHED": 5, "MOST_SHOWN": 3}.items():
        monkeypatch.setattr(recorder, name, most)
    async with watching() as (telemetry, made):
        clients = [begin(telemetry, f"r{number}") for number in range(7)]
        for _ in range(20):
            clients[4].trace.leg("decode", "u")
        shown = made.shown()
        for each in clients:
            each.trace.end(200, failed=False)
        for number in range(200):
            begin(telemetry, f"s{number}").trace.end(200, failed=False)
        after = made.shown()

    assert (len(shown["live"]), shown["live_total"]) == (3, 5)
    assert [request["id"] for request in shown["live"]] == ["r2", "r3", "r4"]
    assert len(shown["live"][2]["legs"]) == MAX_LEGS
    assert (len(after["recent"]), after["recent"][-1]["id"]) == (recorder.MOST_ENDED, "s199")
