"""The guard before the routes that need an API key: it lets in, or answers; what is behind it never sees the key.

It counts by key: a name is a label only if it is in the file; what strangers show never is.
"""

from collections.abc import Callable
from functools import cache

from prometheus_client import CollectorRegistry, Counter, Gauge
from starlette.types import ASGIApp, Receive, Scope, Send

from baton.proxy.auth.account import Account
from baton.proxy.auth.errors import AccessError, Denial, ModelNotAllowedError
from baton.proxy.auth.keyring import Keyring, without_credentials
from baton.proxy.http.headers import request_id_of
from baton.proxy.http_server.client_protocol import writer_of
from baton.proxy.http_server.connection_budget import ConnectionBudget
from baton.proxy.request.caller import CALLER
from baton.proxy.request.error_format import shape_of
from baton.proxy.request.parse import discard_body, is_reset_unless_read
from baton.proxy.response.client_response import ClientResponse
from baton.proxy.response.request_record import RequestRecord
from baton.proxy.telemetry.request_telemetry import RequestTelemetry


class AccessMetrics:
    """The series of one proxy that asks for keys."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._requests = Counter(
            "baton_key_requests", "Requests that an API key let in, by its name", ("key",), registry=registry
        )
        self._refusals = Counter(
            "baton_access_refusals",
            "Requests refused for their API key, by its name (empty: none was recognised) and reason",
            ("key", "reason"),
            registry=registry,
        )
        self.file_is_broken = Gauge(
            "baton_api_keys_file_broken",
            "Workers that go on with former API keys because the file cannot be used",
            registry=registry,
        ).set
        self._requests_of = cache(self._requests.labels)  # finding a series costs more than counting

    def let_in(self, name: str) -> None:
        self._requests_of(name).inc()

    def refused(self, name: str, denial: Denial) -> None:
        self._refusals.labels(name, denial).inc()


class KeyOwner:
    """The owner of a key, as what is behind the guard sees it: a name, and which models."""

    __slots__ = ("_account", "_counted")

    def __init__(self, account: Account, counted: AccessMetrics) -> None:
        self._account = account
        self._counted = counted

    @property
    def name(self) -> str:
        return self._account.name

    def may_use(self, model: str) -> bool:
        return self._account.may_use(model)

    def check_model(self, model: str) -> None:
        """Raise `ModelNotAllowedError` unless the key may use a model."""
        try:
            self._account.check_model(model)
        except ModelNotAllowedError:
            self._counted.refused(self.name, Denial.MODEL)
            raise


class AuthMiddleware:
    """Asks for an API key before one ASGI application."""

    def __init__(
        self,
        app: ASGIApp,
        label: Callable[[Scope], str],  # names a request's endpoint, for `telemetry`
        keyring: Keyring,
        counted: AccessMetrics,
        *,
        telemetry: RequestTelemetry,
        claims: ConnectionBudget,  # nothing is claimed here
    ) -> None:
        self._app = app
        self._label = label
        self._keyring = keyring
        self._counted = counted
        self._telemetry = telemetry
        self._claims = claims

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            account = self._keyring.account_of(scope["headers"])
            account.enter()
        except AccessError as exc:
            await self._refuse(exc, scope, receive, send)
            return
        try:
            self._counted.let_in(account.name)
            scope["headers"] = without_credentials(scope["headers"])
            scope[CALLER] = KeyOwner(account, self._counted)
            await self._app(scope, receive, send)
        finally:
            account.leave()

    async def _refuse(self, error: AccessError, scope: Scope, receive: Receive, send: Send) -> None:
        self._counted.refused(error.name, error.denial)
        request_id, claim = request_id_of(scope["headers"]), self._claims.claim()
        record = RequestRecord(request_id)
        client = ClientResponse(send, writer_of(scope), claim, record, shape_of(scope["path"]))
        with self._telemetry.recording(self._label(scope), scope, record):
            if is_reset_unless_read(scope):
                await discard_body(receive)
            await client.fail(error)


class ReadingAuthMiddleware(AuthMiddleware):
    """Before what costs nothing: a key is needed, and its limits do not count."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            account = self._keyring.account_of(scope["headers"])
        except AccessError as exc:
            await self._refuse(exc, scope, receive, send)
            return
        scope[CALLER] = KeyOwner(account, self._counted)
        await self._app(scope, receive, send)
