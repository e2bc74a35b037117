"""The decode node's answer on its way to the client: its bytes, untouched, or through what remembers and joins them.

Connection.data_received         proxy/http/connection.py: parses the node's bytes
UpstreamResponse.arrived         proxy/http/response.py: gives each chunk to what `pour` was given
relay_chunk or record_chunk      here; a stream that can go on elsewhere is recorded by `Stream.take` (proxy/resume/stream.py)
ClientResponse.write             proxy/response/client_response.py
Writer.write                     proxy/http_server/client_protocol.py: to the client's socket; False while the client does not keep up
"""

from collections.abc import Callable
from typing import Final

from baton.contracts.http import DISAGGREGATED, REASON_HEADER, RECOMPUTED
from baton.proxy.errors import FailureKind, StreamBrokenError, UpstreamError
from baton.proxy.http import headers
from baton.proxy.http.response import Sink, UpstreamResponse
from baton.proxy.planning.outcome import Opened
from baton.proxy.response.client_response import ClientResponse
from baton.proxy.response.request_record import RequestRecord
from baton.proxy.resume.stream import Stream

# The last event of every stream of the OpenAI API; a stream without it was cut, however clean its end looks.
END_OF_STREAM: Final = b"data: [DONE]"
_TAIL_BYTES: Final = len(END_OF_STREAM) + 4
_RECOMPUTED_BY_NODE: Final = "the decode node computed the prompt itself"


async def relay(opened: Opened, client: ClientResponse, stream: Stream) -> None:
    """Send an answer to the client, or go on with one that it has part of; the caller closes the node's.

    Raises:
        StreamBrokenError: the decode node's stream broke; the client has part of it.
        CannotFollowError: the answer is not the one that the client has part of.
    """
    answer = opened.answer
    if client.record.status and not answer.is_stream:
        raise StreamBrokenError(FailureKind.PROTOCOL, "its answer is no stream")
    if answer.is_stream:
        stream.begin_decode(client.record)
    is_recorded = answer.is_stream and stream.record is not None
    first = stream.take(opened.first) if is_recorded else opened.first
    if client.record.status:
        keeps_up = client.write(first)
    else:
        _record_recompute(opened, client.record)
        head = headers.to_relay(answer.headers)
        if not answer.is_stream:
            await client.answer(answer.status, [*head, (b"content-length", b"%d" % len(first))], first)
            return
        keeps_up = client.begin_stream(answer.status, head, first, ends=_is_whole(opened, stream))
    if not keeps_up:
        await client.wait_writable()
    await (_relay_recorded(answer, stream, client) if is_recorded else _relay_untouched(answer, first, client))
    client.end()


def _is_whole(opened: Opened, stream: Stream) -> bool:
    """Whether nothing will follow the first bytes, which have passed: a short stream's come together with its end."""
    if not opened.answer.is_over or stream.broken is not None:
        return False
    return stream.ended if stream.record is not None else opened.first.rstrip().endswith(END_OF_STREAM)


async def _relay_untouched(answer: UpstreamResponse, first: bytes, client: ClientResponse) -> None:
    tail, write = first, client.write

    def relay_chunk(chunk: bytes, is_last: bool) -> bool:
        nonlocal tail
        tail = chunk if len(chunk) >= _TAIL_BYTES else (tail + chunk)[-_TAIL_BYTES:]
        return write(chunk, is_last and tail.rstrip().endswith(END_OF_STREAM))

    await _pour(answer, relay_chunk, client, has_ended=lambda: tail.rstrip().endswith(END_OF_STREAM))


async def _relay_recorded(answer: UpstreamResponse, stream: Stream, client: ClientResponse) -> None:
    if stream.broken is not None:  # the first bytes held it
        raise stream.broken
    write = client.write

    def record_chunk(chunk: bytes, is_last: bool) -> bool:
        recorded = stream.take(chunk)
        may_go_on = write(recorded, is_last and stream.ended and stream.broken is None)
        if stream.broken is not None:
            raise stream.broken
        return may_go_on

    await _pour(answer, record_chunk, client, has_ended=lambda: stream.ended)


async def _pour(answer: UpstreamResponse, sink: Sink, client: ClientResponse, *, has_ended: Callable[[], bool]) -> None:
    """Hand all that comes to a sink. A stream that breaks after its last event is complete."""
    try:
        await answer.pour(sink, client.wait_writable)
    except UpstreamError as exc:
        if not has_ended():
            raise StreamBrokenError(exc.kind, str(exc)) from exc
    if not has_ended():
        raise StreamBrokenError(FailureKind.DISCONNECT, "its stream ended before its last event")


def _record_recompute(opened: Opened, record: RequestRecord) -> None:
    """Believe a decode node that says that it had to compute a prompt whose KV should have come."""
    if record.path == DISAGGREGATED and opened.recomputed:
        reason = headers.find(opened.answer.headers, REASON_HEADER.encode()) or b""
        record.path = RECOMPUTED
        record.reason = reason.decode("latin-1") or _RECOMPUTED_BY_NODE
