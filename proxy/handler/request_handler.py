"""The main path: one request, from the client's bytes to the last byte of its answer.

From the request to the first byte that a prefill node gets there are six calls, in four files:

1. `RequestHandler.__call__` makes one answer of whatever happens.
2. `RequestHandler.answer` reads the body once, and waits for a place (`admission/`).
3. `RequestHandler.serve` relays the answer's bytes, and has a stream that breaks go on on another node.
4. `RequestAttempts.answer` (`failover.py`) chooses nodes (`planning/`), and others for as long as the client has
   nothing.
5. `Attempt.__aenter__` (`attempt.py`) makes the two legs' bodies, and sends the prefill node's first.
6. `Upstream.send` (`http/upstream.py`) writes to a connection.

Every wait is bounded by the request's deadline.
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from time import perf_counter

from starlette.types import Receive, Scope, Send

from baton.contracts.configuration.schema import BatonConfig
from baton.proxy.admission.admission import Admission
from baton.proxy.errors import (
    BadGatewayError,
    BodyTooLargeError,
    ClientGoneError,
    DeadlineError,
    FailureKind,
    NoDescriptorsError,
    ProxyError,
    RetryLaterError,
    StreamBrokenError,
    UnavailableError,
)
from baton.proxy.handler.answer_returns import AnswerReturns
from baton.proxy.handler.failover import Failover, RequestAttempts
from baton.proxy.http.headers import request_id_of
from baton.proxy.http_server.cancel_scope import CancelOnDisconnect
from baton.proxy.http_server.client_protocol import writer_of
from baton.proxy.http_server.stall_watchdog import STALLED
from baton.proxy.planning.outcome import PrefillDone
from baton.proxy.request.caller import check_model
from baton.proxy.request.error_format import shape_of
from baton.proxy.request.long_bodies import LongBodies
from baton.proxy.request.parse import ClientRequest, discard_body, is_reset_unless_read, parse, read_body
from baton.proxy.response.client_response import ClientResponse
from baton.proxy.response.first_token_relay import FirstTokenRelay
from baton.proxy.response.request_record import RequestRecord
from baton.proxy.response.stream_relay import relay
from baton.proxy.resume.rules import CannotFollowError, NotResumableReason
from baton.proxy.resume.stream import Stream
from baton.proxy.telemetry.request_telemetry import RequestTelemetry

logger = logging.getLogger(__name__)

_SAMPLED_ANOTHER = "the decode node has sampled another first token"


class RequestHandler:
    """Serves the data routes, as a plain ASGI application."""

    def __init__(
        self,
        config: BatonConfig,
        admission: Admission,
        failover: Failover,
        telemetry: RequestTelemetry,
        returns: AnswerReturns,
    ) -> None:
        self._max_body_bytes = config.proxy.max_body_bytes
        self._resumes = config.proxy.resume != "off"
        self._relays = config.proxy.relay_first_token
        self._long_bodies = LongBodies()
        self._admission = admission
        self._failover = failover
        self._attempts = failover.attempts
        self._returns = returns
        self._metrics = telemetry.metrics
        self._telemetry = telemetry

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        route, request_id = self.label(scope), request_id_of(scope["headers"])
        claim = self._admission.claims.claim()
        record = self._telemetry.begin_record(scope, route, request_id)
        client = ClientResponse(send, writer_of(scope), claim, record, shape_of(scope["path"]))
        with self._telemetry.recording(route, scope, record):
            try:
                with claim:
                    await self.answer(scope, receive, client)
            except ClientGoneError:
                self._gone(scope, record)
            except RetryLaterError as exc:
                self._metrics.refused(exc.reason)
                if isinstance(exc, NoDescriptorsError):
                    await discard_body(receive)
                await client.fail(exc)
            except BodyTooLargeError as exc:
                if is_reset_unless_read(scope):
                    await discard_body(receive)
                await client.fail(exc)
            except ProxyError as exc:
                await client.fail(exc)
            except Exception:
                logger.exception("request failed", extra={"request_id": request_id})
                await client.fail(ProxyError("the proxy failed; its log has the details"))
            except asyncio.CancelledError:
                await client.fail(UnavailableError("the proxy is stopping"))
                raise

    def label(self, scope: Scope) -> str:
        return str(scope["path"])

    async def answer(self, scope: Scope, receive: Receive, client: ClientResponse) -> None:
        async with self.deadline(scope) as deadline:
            body = await read_body(scope, receive, self._max_body_bytes)
            await self._long_bodies.wait(len(body))
            request = parse(scope["path"], client.record.request_id, scope["headers"], body, client.record.trace)
            check_model(scope, request.model)
            asked_s = perf_counter()
            with CancelOnDisconnect(writer_of(scope)):
                async with self._admission.inside(request, scope, deadline):
                    client.record.let_in(asked_s)
                    await self.serve(request, deadline, client)

    async def serve(self, request: ClientRequest, deadline: asyncio.Timeout, client: ClientResponse) -> None:
        """Serve a request that was let in; a `ProxyError` ends it, before its head or in the middle of a stream."""
        stream = Stream(request, resumes=self._resumes, relays=self._relays)
        attempts, first = self._failover.request_attempts(deadline), FirstTokenRelay(client, stream)
        broken: StreamBrokenError | None = None
        while True:
            try:
                async with attempts.answer(first, client.record.record_plan) as opened:
                    if isinstance(opened, PrefillDone):
                        return client.end()
                    with attempts.watching(first) if opened.answer.is_stream else nullcontext():
                        await relay(opened, client, stream)
            except StreamBrokenError as exc:
                if stream.record is not None and stream.ended:  # what broke off was only the end of its connection
                    return client.end()
                broken = exc.with_traceback(None)  # whose frames refer to this one's, which would keep the request
                broken.__cause__ = broken.__context__ = None  # likewise
                attempts.broke(exc.how)
            except CannotFollowError as exc:
                exc.with_traceback(None)  # the answer keeps it
                exc.__cause__ = exc.__context__ = None
                broken = broken or StreamBrokenError(FailureKind.REFUSED, _SAMPLED_ANOTHER)
                if not stream.can_be_mended:
                    raise self._broken_off(broken, exc.reason) from exc
                # A prefill node's token has not come to the decode node, which has sampled itself: it has done nothing
                # wrong.
            except ProxyError as exc:
                if broken is None:
                    raise
                raise self._broken_off(broken, NotResumableReason.NO_NODE) from exc
            else:
                return self._returns.offer(stream, attempts.has_kv())
            await self._prepare_next_leg(stream, attempts, client, broken)

    @asynccontextmanager
    async def deadline(self, scope: Scope) -> AsyncIterator[asyncio.Timeout]:
        timeout_s = self._admission.timeout_s(scope["headers"])
        try:
            async with asyncio.timeout(timeout_s) as deadline:
                yield deadline
        except TimeoutError as exc:
            raise DeadlineError(f"the request did not end within {timeout_s:g} s") from exc

    async def _prepare_next_leg(
        self, stream: Stream, attempts: RequestAttempts, client: ClientResponse, broken: StreamBrokenError
    ) -> None:
        """Let a stream that broke go on on another node, or raise what it ends with."""
        try:
            stream.go_on()
        except CannotFollowError as exc:
            raise self._broken_off(broken, exc.reason) from exc
        if broken.how is not FailureKind.DRAINED and not attempts.may_go_on():
            raise self._broken_off(broken, NotResumableReason.RETRY_DENIED)
        await client.claim.both_again()
        self._metrics.resumed(broken.how)
        record, tokens = client.record, sum(map(len, stream.asked.start))
        record.trace.event("resume", kind=str(broken.how), tokens=str(tokens))
        fields = {"request_id": record.request_id, "kind": str(broken.how), "tokens": tokens}
        logger.info("stream resumed", extra=fields)

    def _broken_off(self, broken: StreamBrokenError, reason: NotResumableReason) -> BadGatewayError:
        self._metrics.not_resumed(reason)
        return BadGatewayError(f"{broken.message}; the stream cannot be resumed: {reason.sentence}")

    def _gone(self, scope: Scope, record: RequestRecord) -> None:
        record.left = True
        if STALLED in scope:
            self._metrics.client_dropped()
        else:
            logger.debug("client left", extra={"request_id": record.request_id})
