"""The node's gate in front of vLLM's OpenAI server, as raw ASGI middleware.

It answers the node API, adds Baton's series to `/metrics`, lets nothing with unsigned `kv_transfer_params` through, and
on decode nodes names the path that an answer took. A node that drains takes no new work. All else passes untouched.

vLLM constructs the class with its application alone: `configure` lays down beforehand, in that process, what it needs.
"""

import asyncio
import logging
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from baton.contracts.http import AHEAD, CANCEL_PATH, METRICS_PATH, PROBE_PATH, TOKEN_IDS_HEADER
from baton.contracts.kv_transfer import Role, TransferParamsError
from baton.contracts.probe import Place
from baton.contracts.secret import ClusterSecret
from baton.kv_connector.telemetry.refusals import Refusals, Refused
from baton.node.connector.connector_channel import ConnectorClient, Outcomes
from baton.node.drain import RETRY_AFTER, Drain, nothing
from baton.node.engine_watch import EngineWatch
from baton.node.errors import NoAnswerError
from baton.node.http.api import PATHS, NodeApi
from baton.node.http.asgi import App, Message, Receive, Scope, Send, header, read_body, replay, send_error
from baton.node.http.cancel import cancel_transfers
from baton.node.http.connections import bound_connections, note_proof
from baton.node.http.held_response import hold_stream, name_path
from baton.node.http.load import Load
from baton.node.http.metrics import ConnectorMetrics
from baton.node.http.probe import ProbeApi
from baton.node.http.token_ids import TokenLog, logged, name_tokens, tap_outputs
from baton.node.http.tokens_ahead import naming_ahead
from baton.node.http.transfer_params import verified_params

logger = logging.getLogger(__name__)

_OPENAPI_PATH = "/openapi.json"
_HERE = Place(host="127.0.0.1", protocol="tcp")
_NAMES_TOKENS = TOKEN_IDS_HEADER.encode()
_AHEAD = AHEAD.encode()


@dataclass(frozen=True, slots=True, kw_only=True)
class GateSettings:
    """What the gate needs to know about its node."""

    role: Role
    roles: frozenset[Role]  # that it may have in a transfer
    model: str
    secret: ClusterSecret
    runtime_dir: Path
    drain_timeout_s: float
    first_token_wait_s: float = 0.0
    place: Place = _HERE  # of the transfer engine


_configured: list[GateSettings] = []  # at most one: a process serves one node


def configure(settings: GateSettings) -> None:
    """Lay down the settings for the gate that vLLM will construct."""
    _configured[:] = [settings]


class NodeMiddleware:
    """Wraps vLLM's application."""

    def __init__(self, app: App, settings: GateSettings | None = None) -> None:
        settings = settings or _configured[0]
        self._app = app
        self._roles = settings.roles
        self._secret = settings.secret
        self._first_token_wait_s = settings.first_token_wait_s
        self._outcomes = Outcomes(settings.runtime_dir)
        self._connector = ConnectorClient(settings.runtime_dir, settings.secret)
        self._refusals = Refusals(logger)
        both_ways = len(settings.roles) > 1
        self._metrics = ConnectorMetrics(settings.role, self._connector, self._refusals, both_ways=both_ways)
        self._probe_api = ProbeApi(settings.secret, settings.place)
        self._load = Load()
        self._building = asyncio.Lock()  # of vLLM's OpenAPI document
        self._drain = Drain(settings.drain_timeout_s, self._held_prompts if "prefill" in settings.roles else nothing)
        self._api = NodeApi(
            role=settings.role,
            model=settings.model,
            connector=self._connector,
            refusals=self._refusals,
            is_draining=lambda: self._drain.begun,
            load=self._load.now,
        )
        self._routes: dict[str, App] = {  # each only for a request that `_lets_in` has let in
            **dict.fromkeys(PATHS, self._api.answer),
            CANCEL_PATH: partial(cancel_transfers, self._connector),
            PROBE_PATH: self._probe_api.answer,
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            send = self._with_channels(scope, send)
        elif scope["type"] == "http":
            path = scope["path"]
            if (answer := self._routes.get(path)) is not None:
                return await answer(scope, receive, send) if await self._lets_in(scope, send) else None
            if scope["method"] == "POST":
                return await self._work(scope, receive, send)
            if path.rstrip("/") == METRICS_PATH:
                await self._metrics.scrape()
            elif path == _OPENAPI_PATH:
                await self._build_document(scope["app"])
        return await self._app(scope, receive, send)

    async def _lets_in(self, scope: Scope, send: Send) -> bool:
        """Whether a request shows the token, of either secret while one is replaced; if not, count and answer it."""
        scheme, _, token = header(scope, b"authorization").partition(b" ")
        if scheme.lower() == b"bearer" and self._secret.accepts_node_token(token):
            note_proof(scope)
            return True
        self._refusals.count(Refused.BAD_TOKEN, scope["path"])
        challenge = [(b"www-authenticate", b"Bearer")]
        await send_error(send, 401, "the node API needs the cluster's bearer token", challenge)
        return False

    async def _work(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._drain.begun:
            await send_error(send, 503, "the node is stopping and takes no new work", RETRY_AFTER)
            return
        with self._drain.request():
            await self._check(scope, receive, send)

    async def _check(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await read_body(receive, send)
        if body is None:
            return  # the client left before it had sent the request
        try:
            transfer = verified_params(body, self._roles, self._secret)
        except TransferParamsError as exc:
            self._refusals.count(exc.kind, exc)
            await send_error(send, 403, str(exc))
            return
        if transfer is not None:
            note_proof(scope)
        starts = transfer is not None and transfer.role == "decode" and bool(transfer.start)
        if starts and (reason := await self._start_objection()):
            self._refusals.count(Refused.START, reason)
            await send_error(send, 503, reason)
            return
        names = header(scope, _NAMES_TOKENS)
        relays = transfer is not None and transfer.relays
        log = TokenLog(one_by_one=starts or relays) if names or starts or relays else None
        if log is not None and names and names != _AHEAD:
            send = name_tokens(send, log)
        if transfer is not None and relays and log is not None:
            send = hold_stream(send, transfer.transfer_id, self._outcomes, self._first_token_wait_s, log)
        async with naming_ahead(send, log) if log is not None and names == _AHEAD else nullcontext(send) as answer:
            if transfer is not None and transfer.role == "decode":
                answer = name_path(answer, transfer.transfer_id, self._outcomes)  # noqa: PLW2901  # wrapped
            computes = transfer is None or not (transfer.kv_only or (transfer.role == "prefill" and transfer.start))
            with self._load.request(len(body) if computes else 0), logged(log):
                await self._app(scope, replay(body, receive), answer)

    async def _build_document(self, app: Any) -> None:
        """Have `app`, a FastAPI application, make the document that it keeps, once, in a thread; requests wait for it.

        In the event loop, where FastAPI makes it at the first request, that took 3.6–5.4 s on a loaded core, in which
        `/health`, probes and open streams waited.
        """
        async with self._building:
            if app.openapi_schema is None:
                await asyncio.to_thread(app.openapi)

    async def _start_objection(self) -> str:
        """Say why no request of this node can start with tokens; "" if they can. vLLM's own scheduler would ignore them."""
        if self._api.starts_with_tokens:  # a proxy sends tokens after it has read that here
            return ""
        try:
            snapshots = await self._connector.both()
        except NoAnswerError as exc:
            return f"whether this node starts requests with tokens is not known: {exc}"
        self._api.starts_with_tokens = bool(snapshots.scheduler.get("first_tokens"))
        return "" if self._api.starts_with_tokens else "this node does not start requests with tokens"

    async def _held_prompts(self) -> int:
        """How many finished prompts wait until their pushes have ended."""
        transfers = (await self._connector.both()).scheduler.get("transfers", [])
        return sum(transfer.get("state") == "held" for transfer in transfers)

    def _with_channels(self, scope: Scope, send: Send) -> Send:
        """Open the channels before the application starts serving, close them after it has stopped."""
        engine = EngineWatch(scope["app"].state)

        async def send_after(message: Message) -> None:
            if message["type"] == "lifespan.startup.complete":
                tap_outputs()
                self._outcomes.start()
                self._metrics.start()
                self._connector.start()
                self._probe_api.start()
                self._drain.take_signal()
                engine.start()
                bound_connections(scope["app"].state.server, self._refusals.count)
            elif message["type"] == "lifespan.shutdown.complete":
                engine.stop()
                self._outcomes.stop()
                self._metrics.stop()
                self._connector.stop()
                await self._probe_api.stop()
            await send(message)

        return send_after
