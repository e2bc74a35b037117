import asyncio
import json
import random
import threading
from collections import Counter
from contextlib import suppress
from functools import partial
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from baton.contracts.http import CANCEL_PATH, METRICS_PATH, PROBE_PATH
from baton.contracts.kv_transfer import FIELD, TransferParams, sign, verify
from baton.contracts.secret import ClusterSecret
from baton.node import middleware
from baton.node.connector.connector_channel import ConnectorClient, Outcomes
from baton.node.drain import Drain
from baton.node.engine_watch import EngineWatch
from baton.node.http.api import PATHS
from baton.node.http.asgi import Scope
from baton.node.http.metrics import ConnectorMetrics
from baton.node.http.probe import ProbeApi
from baton.node.middleware import NodeMiddleware, configure
from tests.fuzz.values import flip_bits, mutate
from tests.support.asgi import Exchange, Recorder, body_of, http
from tests.unit.node.gate import COMPLETIONS, SECRET, TRANSFER, gate, leg, settings


async def test_a_body_arrives_whole_and_its_answer_as_it_is() -> None:
    app = Recorder()
    body = b'{"prompt": "x"}'
    exchange = await Exchange(http("POST", COMPLETIONS), body_of(body[:7], b"", body[7:])).run(gate(app))

    assert app.received == body_of(body)
    assert exchange.sent == list(app.answer)


async def test_the_disconnect_still_arrives_after_the_body() -> None:
    """Routes of vLLM wait for it to abort the request."""
    app = Recorder()
    exchange = Exchange(http("POST", COMPLETIONS), body_of(leg()))
    running = asyncio.create_task(exchange.run(gate(app.wait_for_disconnect)))
    await asyncio.sleep(0)
    assert not running.done()

    exchange.disconnect()
    await running

    assert app.disconnected


async def test_a_client_that_leaves_amid_its_body_is_forgotten() -> None:
    app = Recorder()
    exchange = Exchange(http("POST", COMPLETIONS), [{"type": "http.request", "body": b"{", "more_body": True}])
    exchange.disconnect()
    await exchange.run(gate(app))

    assert not app.scopes
    assert not exchange.sent


FORGED = sign(TransferParams(transfer_id=TRANSFER, role="decode", peer=""), ClusterSecret(b"of another cluster"))


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (json.dumps({FIELD: {"do_remote_prefill": True}}).encode(), "malformed_params"),
        (json.dumps({FIELD: "x"}).encode(), "malformed_params"),
        (json.dumps({FIELD: FORGED}).encode(), "bad_signature"),
        (leg("prefill"), "malformed_params"),
    ],
)
async def test_parameters_that_are_unsigned_or_for_the_other_role_never_reach_vllm(body: bytes, kind: str) -> None:
    """The refusal has OpenAI's shape; the operator sees on `/baton/transfers` that a client tries, and what."""
    app = Recorder()
    node = gate(app)
    exchange = await Exchange(http("POST", COMPLETIONS), body_of(body)).run(node)

    assert exchange.status == 403
    assert FIELD in json.loads(exchange.body)["error"]["message"]
    assert node._refusals.snapshot() == {kind: 1}
    assert not app.scopes


async def test_everything_but_posts_passes_without_being_read() -> None:
    """Health checks and web sockets are not ours."""
    app = Recorder({"type": "websocket.close"})
    for scope in (http("GET", "/health"), {"type": "websocket", "path": "/v1/realtime"}):
        exchange = await Exchange(scope).run(gate(app))
        assert exchange.sent == [{"type": "websocket.close"}]


@pytest.mark.parametrize("path", [*PATHS, CANCEL_PATH, PROBE_PATH])
@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "DELETE", "OPTIONS"])
async def test_the_node_api_needs_the_token(method: str, path: str) -> None:
    """It is answered by the gate and counted, never by vLLM; whether the route takes the method comes after."""
    app = Recorder()
    middleware = gate(app)
    exchange = await Exchange(http(method, path, [("Authorization", "Bearer wrong")])).run(middleware)

    assert exchange.status == 401
    assert exchange.headers["www-authenticate"] == "Bearer"
    assert json.loads(exchange.body)["error"]["type"] == "authentication_error"
    assert middleware._refusals.snapshot() == {"bad_token": 1}
    assert not app.scopes


async def test_a_scrape_is_answered_by_vllm_with_our_series_in_its_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """The connector is asked before vLLM renders; other requests ask nothing."""
    calls: list[str] = []

    async def scrape(_: ConnectorMetrics) -> None:
        calls.append("asked")

    async def app(scope: Scope, receive: Any, send: Any) -> None:
        calls.append(scope["path"])

    monkeypatch.setattr(ConnectorMetrics, "scrape", scrape)
    for path in (METRICS_PATH, "/health", f"{METRICS_PATH}/"):
        await Exchange(http("GET", path)).run(gate(app))

    assert calls == ["asked", "/metrics", "/health", "asked", "/metrics/"]


async def test_channels_open_when_serving_starts_and_close_when_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before that the process may still be forked; the application's own messages pass on."""
    calls: list[str] = []
    for kind in (Outcomes, ConnectorClient, ConnectorMetrics, EngineWatch):
        for name in ("start", "stop"):
            monkeypatch.setattr(kind, name, lambda _, call=f"{kind.__name__} {name}": calls.append(call))
    monkeypatch.setattr(ProbeApi, "start", lambda _: calls.append("ProbeApi start"))
    monkeypatch.setattr(Drain, "take_signal", lambda _: calls.append("SIGTERM is ours"))
    monkeypatch.setattr(middleware, "bound_connections", lambda *_: calls.append("connections are bounded"))
    monkeypatch.setattr(middleware, "tap_outputs", lambda: calls.append("vLLM tells of tokens"))
    starting, ended = {"type": "lifespan.startup.complete"}, {"type": "lifespan.shutdown.complete"}

    exchange = await Exchange({"type": "lifespan", "app": SimpleNamespace(state=SimpleNamespace(server=None))}).run(
        gate(Recorder(starting, ended))
    )

    assert calls == [
        "vLLM tells of tokens",
        "Outcomes start",
        "ConnectorMetrics start",
        "ConnectorClient start",
        "ProbeApi start",
        "SIGTERM is ours",
        "EngineWatch start",
        "connections are bounded",
        "EngineWatch stop",
        "Outcomes stop",
        "ConnectorMetrics stop",
        "ConnectorClient stop",
    ]
    assert exchange.sent == [starting, ended]


def test_vllm_constructs_the_gate_with_the_application_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(middleware, "_configured", [])
    with pytest.raises(IndexError):
        NodeMiddleware(Recorder())
    configure(settings())
    configure(settings("prefill"))
    NodeMiddleware(Recorder())
    assert middleware._configured == [settings("prefill")]


async def test_whatever_passes_the_gate_carries_nothing_unsigned() -> None:
    """3,000 mutated bodies: refused with 403, or passed on unchanged and with the proxy's own parameters or none."""
    random_ = random.Random(5)
    params = TransferParams(transfer_id=TRANSFER, role="prefill", peer="")
    fields = {"prompt": "x", "n": 1, FIELD: sign(params, SECRET), "extra": {"deep": [{"a": 1}]}}
    verdicts = Counter[int]()
    node = gate(Recorder(), "prefill")  # one for all: it reads the versions of what is installed
    for _ in range(3_000):
        body = json.dumps(mutate(mutate(fields, random_), random_), default=repr).encode()
        if random_.random() < 0.5:
            body = flip_bits(body, random_)
        node._app = app = Recorder()
        exchange = await Exchange(http("POST", COMPLETIONS), body_of(body)).run(node)
        verdicts[exchange.status] += 1
        if exchange.status == 200:
            assert app.received == body_of(body)
            assert all(verify(value, SECRET) == params for value in parameters_in(body))
        else:
            assert not app.scopes

    assert set(verdicts) == {200, 403}
    assert min(verdicts.values()) > 200, verdicts


def parameters_in(body: bytes) -> list[object]:
    """Every value under the name of the parameters, as vLLM's JSON parser would find them."""
    found: list[object] = []

    def look(pairs: list[tuple[str, object]]) -> dict[str, object]:
        item = dict(pairs)
        if item.get(FIELD) is not None:
            found.append(item[FIELD])
        return item

    with suppress(ValueError):
        json.loads(body, object_pairs_hook=look)
    return found


async def test_the_openapi_document_is_built_outside_the_event_loop() -> None:
    """Once for all who ask at the same time; vLLM's takes seconds."""
    app, builds, asked = FastAPI(), list[int](), threading.Event()

    def build() -> dict[str, str]:
        if app.openapi_schema is None:
            builds.append(threading.get_ident())
            assert asked.wait(10)  # set by a request that the event loop answers
            app.openapi_schema = {"openapi": "3.1.0"}
        return app.openapi_schema

    @app.get("/health")
    async def health() -> None:
        asked.set()

    app.openapi = build  # type: ignore[method-assign]
    app.add_middleware(partial(NodeMiddleware, settings=settings()))
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://node") as client:
        answers = await asyncio.gather(*(client.get(path) for path in ("/openapi.json", "/openapi.json", "/health")))

    assert [answer.status_code for answer in answers] == [200, 200, 200]
    assert answers[0].json() == {"openapi": "3.1.0"}
    assert len(builds) == 1
    assert builds[0] != threading.get_ident()
