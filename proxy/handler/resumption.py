"""One request's answer, from the first leg to the client's last byte, gone on with on other nodes."""

import logging

from baton.proxy.errors import BadGatewayError, FailureKind, ProxyError, StreamBrokenError
from baton.proxy.handler.failover import RequestAttempts
from baton.proxy.planning.outcome import PrefillDone
from baton.proxy.response.client_response import ClientResponse
from baton.proxy.response.first_token_relay import FirstTokenRelay
from baton.proxy.response.stream_relay import relay
from baton.proxy.resume.rules import SENTENCES, CannotFollowError, NotResumableReason
from baton.proxy.resume.stream import Stream
from baton.proxy.telemetry.metrics import Metrics

logger = logging.getLogger(__name__)


async def answer(stream: Stream, request_attempts: RequestAttempts, client: ClientResponse, metrics: Metrics) -> None:
    """Serve an answer.

    Raises:
        ProxyError: it ends with this error, before its head or in the middle of a stream.
    """
    broken: StreamBrokenError | None = None
    first = FirstTokenRelay(client, stream)
    while True:
        try:
            async with request_attempts.answer(first, client.record.record_plan) as opened:
                if isinstance(opened, PrefillDone):
                    return client.end()
                async with request_attempts.watching(stream, client.record):
                    return await relay(opened, client, stream)
        except StreamBrokenError as exc:
            if stream.record is not None and stream.ended:  # what broke off was only the end of its connection
                return client.end()
            broken = exc
            request_attempts.broke(exc.how)
        except CannotFollowError as exc:
            broken = broken or StreamBrokenError(FailureKind.REFUSED, "the decode node has sampled another first token")
            if stream.asked.start or not stream.can_start:
                raise _ends(broken, exc.reason, metrics) from exc
            # The prefill node's token has not come to the decode node, which has computed the prompt itself: it has done nothing wrong.
        except ProxyError as exc:
            if broken is None:
                raise
            raise _ends(broken, NotResumableReason.NO_NODE, metrics) from exc
        await _go_on(stream, request_attempts, client, metrics, broken)


async def _go_on(
    stream: Stream,
    request_attempts: RequestAttempts,
    client: ClientResponse,
    metrics: Metrics,
    broken: StreamBrokenError,
) -> None:
    """Prepare the next leg."""
    try:
        stream.go_on()
    except CannotFollowError as exc:
        raise _ends(broken, exc.reason, metrics) from exc
    if broken.how is not FailureKind.DRAINED and not request_attempts.may_go_on():
        raise _ends(broken, NotResumableReason.RETRY_DENIED, metrics)
    await client.claim.both_again()
    metrics.resumed(broken.how)
    tokens = sum(map(len, stream.asked.start))
    client.record.trace.event("resume", kind=str(broken.how), tokens=str(tokens))
    logger.info(
        "stream resumed", extra={"request_id": client.record.request_id, "kind": str(broken.how), "tokens": tokens}
    )


def _ends(broken: StreamBrokenError, reason: NotResumableReason, metrics: Metrics) -> BadGatewayError:
    metrics.not_resumed(reason)
    return BadGatewayError(f"{broken.message}; the stream cannot be resumed: {SENTENCES[reason]}")
