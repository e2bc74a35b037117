"""One request to one node, and its answer to the client, as it came: status, headers, body, whatever they are."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from baton.proxy.errors import StreamBrokenError, UpstreamError
from baton.proxy.http import headers
from baton.proxy.http.response import UpstreamResponse
from baton.proxy.http.upstream import Upstream
from baton.proxy.nodes.node import Node
from baton.proxy.response.client_response import ClientResponse


@dataclass(frozen=True, slots=True, kw_only=True)
class Passed:
    """What a node is asked."""

    method: str
    path_and_query: str
    headers: bytes  # lines
    body: bytes


@asynccontextmanager
async def asked(upstream: Upstream, node: Node, passed: Passed, timeout_s: float) -> AsyncIterator[UpstreamResponse]:
    """Ask a node; its answer stays open for the block.

    Raises:
        UpstreamError: it did not answer.
    """
    if passed.method == "GET":
        async with upstream.get(node.url, passed.path_and_query, passed.headers, timeout_s=timeout_s) as answer:
            yield answer
        return
    answer = await upstream.post(node.url, passed.path_and_query, passed.headers, passed.body)
    try:
        yield answer
    finally:
        answer.close()


async def relay_stream(answer: UpstreamResponse, client: ClientResponse) -> None:
    """Send a stream of events as it comes.

    Raises:
        UpstreamError: it never began.
        StreamBrokenError: it broke; the client has part of it.
    """
    first = await answer.read_event()
    client.claim.streams()
    await client.start(answer.status, headers.to_relay(answer.headers), first, streams=True)
    try:
        await answer.pour(client.write, client.drained)
    except UpstreamError as exc:
        raise StreamBrokenError(exc.kind, str(exc)) from exc
    client.end()


async def relay_whole(answer: UpstreamResponse, body: bytes, client: ClientResponse) -> None:
    head = [*headers.to_relay(answer.headers), (b"content-length", b"%d" % len(body))]
    await client.start(answer.status, head, body, streams=False)
