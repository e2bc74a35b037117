"""The proxy as one ASGI application: data routes straight to a `RequestHandler`, everything else to FastAPI.

FastAPI and its middleware cost about 50 µs a request and wrap every `send`; data routes go around them and appear in
`/docs` through `openapi/`. What both sides share is the error body.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send

from baton.contracts.configuration.schema import BatonConfig, ProxyConfig
from baton.contracts.http import error_body
from baton.contracts.secret import ClusterSecret
from baton.proxy.admin import about
from baton.proxy.admin.routes import admin_router
from baton.proxy.admin.token import AdminToken
from baton.proxy.admin.worker_group import WorkerGroup
from baton.proxy.admission.admission import Admission
from baton.proxy.auth.api_key_auth import ApiKeyAuth
from baton.proxy.auth.middleware import ReadingAuthMiddleware
from baton.proxy.dashboard.dashboard import Dashboard
from baton.proxy.dashboard.routes import dashboard_router
from baton.proxy.handler.answer_returns import AnswerReturns
from baton.proxy.handler.attempt import AttemptRunner
from baton.proxy.handler.cancel_notifier import CancelNotifier
from baton.proxy.handler.failover import Failover
from baton.proxy.handler.mover import Mover
from baton.proxy.handler.request_handler import RequestHandler
from baton.proxy.handler.stream_watch import StreamWatch
from baton.proxy.http.upstream import Upstream
from baton.proxy.http_server.client_protocol import forget_writer
from baton.proxy.nodes import readiness
from baton.proxy.nodes.registry import NodeRegistry
from baton.proxy.openapi.routes import EngineDocument, add_document
from baton.proxy.openapi.static_routes import ANSWERS, describe_data_routes
from baton.proxy.passthrough.conversations import Conversations
from baton.proxy.passthrough.routes import route_of
from baton.proxy.passthrough.serve import PassThrough
from baton.proxy.planning.placement import Targets
from baton.proxy.planning.planner import Planner
from baton.proxy.planning.retry_policy import RetryPolicy
from baton.proxy.request.caller import caller_of
from baton.proxy.request.endpoints import DATA_ROUTES, RESPONSES
from baton.proxy.routing.local_prefill_policy import LocalPrefillPolicy
from baton.proxy.routing.policies import policy_of
from baton.proxy.routing.prefix_index import PrefixIndex
from baton.proxy.routing.router import Router
from baton.proxy.telemetry import metrics
from baton.proxy.telemetry.node_series import NodeSeries
from baton.proxy.telemetry.request_telemetry import RequestTelemetry
from baton.proxy.tracing.tracing import tracing_of
from baton.proxy.workers.slot import WorkerSlot

MODELS: Final = "/v1/models"
WELCOME: Final = "this is Baton: the base URL of its OpenAI API is /v1 (see /v1/models), its documentation /docs, its dashboard /dashboard"
_KINDS: Final = {401: "authentication_error", 403: "permission_error", 503: "service_unavailable_error"}


class FrontDoor:
    """Sends data requests one way and the rest the other."""

    def __init__(
        self,
        data: RequestHandler,
        responses: RequestHandler,
        passed: RequestHandler,
        api: ASGIApp,
        doors: ApiKeyAuth | None,
    ) -> None:
        """With `doors` all but health, metrics and documents need an API key; the admin API has a token of its own."""

        def guarded(app: RequestHandler) -> ASGIApp:
            return doors.guard(app, app.label) if doors else app

        self._data = dict.fromkeys(DATA_ROUTES, guarded(data)) | {RESPONSES: guarded(responses)}
        self._passed = guarded(passed)
        self._models = doors.guard(api, lambda _: MODELS, ReadingAuthMiddleware) if doors else api
        self._api = api

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Dispatch by path; a data route asked with another method is FastAPI's to refuse."""
        if scope["type"] != "http":
            app = self._api
        elif scope["method"] == "POST" and (data := self._data.get(scope["path"])) is not None:
            app = data
        elif route_of(scope["method"], scope["path"]):
            app = self._passed
        else:
            app = self._models if scope["path"].startswith(MODELS) else self._api
        try:
            await app(scope, receive, send)
        finally:
            forget_writer(scope)


def create_app(
    config: BatonConfig, secret: ClusterSecret, admin_token: AdminToken | None = None, slot: WorkerSlot | None = None
) -> FrontDoor:
    """Wire the proxy; its life begins and ends with ASGI's lifespan.

    Without `admin_token` the admin API is off; `slot` is None in the only worker.

    Raises:
        SourceError: the configuration names members in a way that the proxy cannot follow.
        KeyFileError: the API keys cannot be used.
        TracingError: it wants traces, and they cannot be had like that.
    """
    upstream = Upstream(connect_timeout_s=config.proxy.connect_timeout_s)
    members = NodeRegistry(config.proxy, secret, upstream)
    counted = metrics.Metrics()
    telemetry = RequestTelemetry(config.proxy, counted, tracing_of(config.proxy))
    admission = Admission(
        config.proxy, members=lambda: len(members.prefill) + len(members.decode), waited=counted.waited
    )
    counted.watch_gate(admission.gate)
    keys_file = config.proxy.api_keys_file
    doors = ApiKeyAuth(keys_file, telemetry, admission.claims, slot) if keys_file is not None else None
    retries = RetryPolicy(
        share=config.proxy.retry_share,
        burst=config.proxy.retry_burst,
        max_attempts=config.proxy.max_attempts,
        clock=time.monotonic,
    )
    worker_group = WorkerGroup(members, counted, admission, slot, retries_left=lambda: retries.left)
    dashboard = Dashboard(worker_group, members, admission, telemetry=telemetry, secret=secret, upstream=upstream)
    cancels = CancelNotifier(secret, upstream, counted, patience_s=config.transfer.orphan_timeout_s)
    watch = StreamWatch(
        members.decode,
        members.prefill if config.proxy.when_no_prefill == "refuse" else None,
        stall_timeout_s=config.proxy.stall_timeout_s,
        drain_handover_s=config.proxy.drain_handover_s,
        retries=retries,
    )
    attempts = AttemptRunner(
        config, secret, upstream=upstream, members=members, metrics=counted, cancels=cancels, watch=watch
    )
    planner = Planner(
        members.prefill,
        members.decode,
        **_routers(config.proxy, members),
        local_policy=_local_policy(config.proxy, members),
        when_no_prefill=config.proxy.when_no_prefill,
        key_header=config.proxy.routing_key_header.lower(),
        prefill_patience_s=config.transfer.peer_timeout_s,
        targets=_targets(config.proxy),
        revision=members.revision,
    )
    returns = _move_kv(config, planner, attempts, counted, watch, workers=slot.workers if slot else 1)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        telemetry.start()
        await members.start()
        try:
            await worker_group.start(config.proxy.probe_timeout_s)
            if doors is not None:
                doors.start()
            yield
        finally:
            if doors is not None:
                await doors.stop()
            await dashboard.stop()
            await worker_group.stop()
            await members.stop()
            await returns.stop()
            await attempts.stop()
            await cancels.stop()
            await upstream.stop()
            await asyncio.to_thread(telemetry.stop)

    api = FastAPI(title="Baton", lifespan=lifespan, openapi_url=None)  # `openapi/` has its own
    describe_data_routes(api)
    add_document(api, EngineDocument(members, upstream))
    series = NodeSeries(lambda: (*members.prefill, *members.decode), upstream) if config.proxy.node_metrics else None
    _add_routes(api, members, worker_group, series, needs_prefill=config.proxy.when_no_prefill == "refuse")
    unchanging = {"version": about.running_version(), "settings": about.settings(config.proxy)}
    api.include_router(admin_router(members, worker_group, upstream, admin_token, unchanging))
    api.include_router(dashboard_router(dashboard, admin_token))
    api.add_exception_handler(HTTPException, _http_error)
    api.add_exception_handler(RequestValidationError, _invalid)
    failover = Failover(planner, attempts, retries, counted)
    shared = (config, admission, failover, telemetry, returns)
    return FrontDoor(RequestHandler(*shared), Conversations(*shared), PassThrough(*shared), api, doors)


def _move_kv(
    config: BatonConfig,
    planner: Planner,
    attempts: AttemptRunner,
    counted: metrics.Metrics,
    watch: StreamWatch,
    *,
    workers: int,
) -> AnswerReturns:
    """Have the KV of answers go where it is wanted: ahead of streams that leave their node, and back to prefill nodes."""
    watch.ahead = Mover(planner, attempts, counted, timeout_s=config.transfer.transfer_timeout_s, workers=workers)
    timeout_s, mode = config.proxy.stall_timeout_s, config.proxy.return_answers
    return AnswerReturns(planner, attempts, counted, mode=mode, timeout_s=timeout_s, workers=workers)


def _routers(config: ProxyConfig, members: NodeRegistry) -> dict[str, Router]:
    """Return those of prefill and of decode nodes, which share a memory of prompts; by their names for the planner."""
    seen, by_cost = PrefixIndex(), config.placement == "by_cost"
    prefill = Router(policy_of(config.prefill_policy, seen), "prefill")
    decode = Router(policy_of(config.decode_policy, seen, remembers=by_cost), "decode")
    for router in (prefill, decode):
        members.listen(router)
    return {"prefill_router": prefill, "decode_router": decode}


def _targets(config: ProxyConfig) -> Targets | None:
    if config.placement == "pairs":
        return None
    return Targets(config.target_first_token_s, config.target_inter_token_s, config.max_prompt_share)


def _local_policy(config: ProxyConfig, members: NodeRegistry) -> LocalPrefillPolicy:
    policy = LocalPrefillPolicy(local_below_bytes=config.local_below_bytes, max_own_bytes=config.max_own_prompt_bytes)
    members.listen(policy)
    return policy


def _add_routes(
    api: FastAPI, members: NodeRegistry, worker_group: WorkerGroup, series: NodeSeries | None, *, needs_prefill: bool
) -> None:
    @api.head("/health", include_in_schema=False)
    @api.get("/health", response_class=Response)
    async def health() -> Response:
        """Answer 200: this process is alive; see `/ready` for whether it can serve."""
        return Response()

    @api.get("/ready", responses={503: {"description": "No request can be served; `reasons` says why"}})
    async def ready() -> JSONResponse:
        """Say whether requests can be served, and if not (503), why."""
        found = readiness.readiness(members.prefill, members.decode, needs_prefill=needs_prefill)
        return JSONResponse(found, status_code=200 if found["ready"] else 503)

    @api.get("/metrics", response_class=PlainTextResponse)
    async def metrics_text() -> Response:
        """Return Prometheus' text format."""
        own = await worker_group.metrics()
        return Response(own + await series.text() if series else own, media_type=metrics.CONTENT_TYPE)

    @api.get("/version")
    async def version() -> JSONResponse:
        """Return the version of the nodes' vLLM, as vLLM does; several are joined by commas. `baton` is the proxy's own."""
        described = [node.info for node in (*members.decode, *members.prefill) if node.info is not None]
        versions = sorted({info.versions.get("vllm", "") for info in described} - {""})
        return JSONResponse({"version": ",".join(versions), "baton": about.running_version()})

    @api.get("/load")
    async def load() -> JSONResponse:
        """Return how many requests the decode nodes have accepted and not ended, in vLLM's form, as of their last probes."""
        loads = [node.info.load for node in members.decode if node.info is not None and node.info.load is not None]
        return JSONResponse({"server_load": sum(found.requests for found in loads)})

    answers: dict[int | str, dict[str, Any]] = {status: ANSWERS[status] for status in (401, 404, 429, 503)}

    @api.get("/v1/models", responses=answers)
    async def models(request: Request) -> JSONResponse:
        """List the models that ready decode nodes serve, and the caller may use."""
        found = readiness.models(members.decode)
        if not found:
            return _error(503, "no decode node is ready", "service_unavailable_error")
        return JSONResponse({"object": "list", "data": [entry for entry in found if _may_use(request, entry["id"])]})

    @api.get("/v1/models/{model:path}", responses=answers)
    async def model(request: Request, model: str) -> JSONResponse:
        """Describe one model."""
        found = [
            entry for entry in readiness.models(members.decode) if entry["id"] == model and _may_use(request, model)
        ]
        return JSONResponse(found[0]) if found else _error(404, f"The model `{model}` does not exist.", "NotFoundError")


def _may_use(request: Request, model: str) -> bool:
    caller = caller_of(request.scope)
    return caller is None or caller.may_use(model)


async def _http_error(request: Request, exc: Exception) -> JSONResponse:
    """Put Starlette's own refusals (unknown path, wrong method) into OpenAI's shape."""
    assert isinstance(exc, HTTPException)
    method = f"{request.method} " if exc.status_code == 405 else ""
    message = WELCOME if request.url.path == "/" else f"{method}{request.url.path}: {exc.detail}"
    return _error(exc.status_code, message, _KINDS.get(exc.status_code, "invalid_request_error"), exc.headers)


async def _invalid(_: Request, exc: Exception) -> JSONResponse:
    """Put FastAPI's refusal of a body or query into OpenAI's shape."""
    assert isinstance(exc, RequestValidationError)
    problems = [f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in exc.errors()]
    return _error(400, "; ".join(problems), "invalid_request_error")


def _error(status: int, message: str, kind: str, headers: Any = None) -> JSONResponse:
    return JSONResponse(error_body(message, kind=kind, code=status), status_code=status, headers=headers)
