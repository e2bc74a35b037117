"""The main path: one request, from the client's bytes to the last byte of its answer.

Read the body once; choose nodes; send both legs at once; relay the decode node's bytes. Until the first byte went out
any failure leads to another plan (`failover.py`); after it the stream is resumed where that is exact (`answering.py`).
Every wait is bounded by the request's deadline.
"""

import asyncio
import logging

from starlette.types import Receive, Scope, Send

from contracts.configuration.schema import BatonConfig
from proxy.answering import answer
from proxy.client import Client
from proxy.disconnect import while_connected
from proxy.errors import ClientGoneError, DeadlineError, ProxyError, UnavailableError
from proxy.failover import Failover
from proxy.headers import request_id_of
from proxy.metrics import Metrics
from proxy.request import ClientRequest, parse, read_body
from proxy.resume.stream import Stream

logger = logging.getLogger(__name__)


class Orchestrator:
    """Serves the data routes, as a plain ASGI application."""

    def __init__(self, config: BatonConfig, failover: Failover, metrics: Metrics) -> None:
        self._timeout_s = config.proxy.request_timeout_s
        self._max_body_bytes = config.proxy.max_body_bytes
        self._resume = config.proxy.resume
        self._failover = failover
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, whatever happens."""
        client = Client(send, request_id_of(scope["headers"]))
        with self._metrics.exchange(scope["path"], client):
            try:
                async with asyncio.timeout(self._timeout_s) as deadline:
                    await self._answer(scope, receive, client, deadline)
            except ClientGoneError:
                logger.debug("client left", extra={"request_id": client.request_id})
            except ProxyError as exc:
                await client.fail(exc)
            except TimeoutError:
                await client.fail(DeadlineError(f"the request did not end within {self._timeout_s:g} s"))
            except Exception:
                logger.exception("request failed", extra={"request_id": client.request_id})
                await client.fail(ProxyError("the proxy failed; its log has the details"))
            except asyncio.CancelledError:
                await client.fail(UnavailableError("the proxy is stopping"))
                raise

    async def _answer(self, scope: Scope, receive: Receive, client: Client, deadline: asyncio.Timeout) -> None:
        body = await read_body(scope, receive, self._max_body_bytes)
        request = parse(scope["path"], client.request_id, scope["headers"], body)
        async with while_connected(receive):
            await self._serve(request, client, deadline)

    async def _serve(self, request: ClientRequest, client: Client, deadline: asyncio.Timeout) -> None:
        await answer(Stream(request, self._resume), self._failover.course(deadline), client, self._metrics)
