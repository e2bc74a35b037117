"""One request's stream, gone on with on another node after a leg that broke."""

import logging

from baton.proxy.errors import BadGatewayError, FailureKind, StreamBrokenError
from baton.proxy.handler.failover import RequestAttempts
from baton.proxy.response.client_response import ClientResponse
from baton.proxy.resume.rules import SENTENCES, CannotFollowError, NotResumableReason
from baton.proxy.resume.stream import Stream
from baton.proxy.telemetry.metrics import Metrics

logger = logging.getLogger(__name__)


async def prepare_next_leg(
    stream: Stream,
    request_attempts: RequestAttempts,
    client: ClientResponse,
    metrics: Metrics,
    broken: StreamBrokenError,
) -> None:
    """Prepare the next leg.

    Raises:
        BadGatewayError: the stream ends.
    """
    try:
        stream.go_on()
    except CannotFollowError as exc:
        raise break_off(broken, exc.reason, metrics) from exc
    if broken.how is not FailureKind.DRAINED and not request_attempts.may_go_on():
        raise break_off(broken, NotResumableReason.RETRY_DENIED, metrics)
    await client.claim.both_again()
    metrics.resumed(broken.how)
    tokens = sum(map(len, stream.asked.start))
    client.record.trace.event("resume", kind=str(broken.how), tokens=str(tokens))
    logger.info(
        "stream resumed", extra={"request_id": client.record.request_id, "kind": str(broken.how), "tokens": tokens}
    )


def break_off(broken: StreamBrokenError, reason: NotResumableReason, metrics: Metrics) -> BadGatewayError:
    """Return the error with which a stream ends that does not go on."""
    metrics.not_resumed(reason)
    return BadGatewayError(f"{broken.message}; the stream cannot be resumed: {SENTENCES[reason]}")
