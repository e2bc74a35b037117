"""All that a request goes through before it is served: descriptors, its own deadline, the gate."""

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Final

from starlette.types import Scope

from baton.contracts.configuration.schema import ProxyConfig
from baton.proxy.admission.concurrency_limiter import ConcurrencyLimiter, Ticket
from baton.proxy.admission.request_terms import priority_of, tenant_of, timeout_s_of
from baton.proxy.http.headers import RawHeaders
from baton.proxy.http_server import descriptors
from baton.proxy.http_server.connection_budget import ConnectionBudget
from baton.proxy.nodes.node import SEQUENCE_BYTES
from baton.proxy.nodes.views import AdmissionView
from baton.proxy.request.caller import caller_of
from baton.proxy.request.parse import ClientRequest

logger = logging.getLogger(__name__)
_SILENCE_S: Final = 5.0  # between two log lines about descriptors


class Admission:
    """Decides which requests begin, which wait, and which are refused."""

    def __init__(
        self,
        config: ProxyConfig,
        *,
        members: Callable[[], int],  # counts nodes
        waited: Callable[[float], None],  # is told how long each request waited (s)
    ) -> None:
        self._limit = descriptors.limit()
        self._config = config
        self._members = members
        self._said_s = -_SILENCE_S
        self.gate = ConcurrencyLimiter(
            max_inside=config.max_requests,
            max_waiting=config.max_waiting,
            max_waiting_per_tenant=config.max_waiting_per_tenant,
            waited=waited,
        )
        self.claims = ConnectionBudget(self._most_connections, self._say)

    def timeout_s(self, headers: RawHeaders) -> float:
        return timeout_s_of(headers, self._config.timeout_header.lower(), self._config.request_timeout_s)

    def inside(
        self, request: ClientRequest, scope: Scope, deadline: asyncio.Timeout
    ) -> AbstractAsyncContextManager[None]:
        """Wait for the request's turn, and hold its place for the block.

        Raises:
            BadRequestError: its priority is no integer.
            RetryLaterError: it is not let in.
        """
        when_s = deadline.when()
        assert when_s is not None
        headers, caller = scope["headers"], caller_of(scope)
        ticket = Ticket(
            tenant=tenant_of(headers, self._config.tenant_header.lower(), caller.name if caller else ""),
            priority=priority_of(headers, request.fields, self._config.priority_header.lower()),
            cost=request.prompt_bytes + SEQUENCE_BYTES,
            patience_s=when_s - asyncio.get_running_loop().time(),
        )
        return self.gate.inside_for(ticket)

    def state(self) -> AdmissionView:
        return AdmissionView(
            inside=self.gate.inside,
            max_requests=self.gate.max_inside,
            waiting=self.gate.waiting,
            max_waiting=self.gate.max_waiting,
            expected_wait_s=self.gate.expected_wait_s(),
            connections_to_nodes=self.claims.connections,
            most_connections_to_nodes=self._most_connections(),
        )

    def _most_connections(self) -> int:
        return descriptors.budget(self._limit, self._members()).to_nodes

    def _say(self) -> None:
        now_s = time.monotonic()
        if now_s - self._said_s >= _SILENCE_S:
            self._said_s = now_s
            claims, most = self.claims, self._most_connections()
            fields = {"requests": claims.requests, "connections_to_nodes": claims.connections, "most": most}
            fields["open_files_limit"] = self._limit
            logger.warning("requests refused: the limit of open files is reached", extra=fields)
