"""Serves the passed routes: one node is asked, another if that fails before it answered anything."""

import asyncio
import string
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Final
from urllib.parse import parse_qs, quote

import msgspec
from starlette.types import Receive, Scope

from baton.contracts.decoding import DECODE_ERRORS
from baton.contracts.http import LOCAL
from baton.proxy.errors import BadGatewayError, StreamBrokenError, UpstreamError
from baton.proxy.handler.request_handler import RequestHandler
from baton.proxy.http import headers
from baton.proxy.http.response import UpstreamResponse
from baton.proxy.http.upstream import Upstream
from baton.proxy.http_server.cancel_scope import CancelOnDisconnect
from baton.proxy.http_server.client_protocol import writer_of
from baton.proxy.nodes.node import Node
from baton.proxy.passthrough.choose import nodes_for
from baton.proxy.passthrough.response_owner import holder_of
from baton.proxy.passthrough.routes import Route, route_of
from baton.proxy.request.caller import check_model
from baton.proxy.request.fields import split
from baton.proxy.request.parse import ClientRequest, read_body
from baton.proxy.response.client_response import ClientResponse

REASON: Final = "one node serves this route"
_TRIES: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Passed:
    """What a node is asked."""

    method: str
    path_and_query: str
    headers: bytes  # lines
    body: bytes


class PassThrough(RequestHandler):
    """The same boundary and the same admission as the data routes have."""

    def label(self, scope: Scope) -> str:
        """Return the route, for metrics: as nodes name it, so that ids do not become series."""
        route = route_of(scope["method"], scope["path"])
        return route.template if route else ""

    async def answer(self, scope: Scope, receive: Receive, client: ClientResponse) -> None:
        route = route_of(scope["method"], scope["path"])
        assert route is not None  # `FrontDoor` has looked
        async with self.deadline(scope) as deadline:
            body = await read_body(scope, receive, self._max_body_bytes)
            request = _understood(scope, client, body)
            if not route.response_id:  # such a request names no model, and computes nothing
                check_model(scope, request.model)
            asked_s = perf_counter()
            with CancelOnDisconnect(writer_of(scope)):
                async with self._admission.inside(request, scope, deadline):
                    client.record.let_in(asked_s)
                    passed = _passed(scope, request, body)
                    nodes = await self._nodes(route, request, passed)
                    client.record.path, client.record.reason = LOCAL, REASON
                    await self._try_each(nodes, passed, request, client, deadline)

    async def _nodes(self, route: Route, request: ClientRequest, passed: Passed) -> Sequence[Node]:
        members = self._attempts.members
        if route.response_id:
            return [await holder_of(self._attempts.upstream, members.decode, route.response_id, passed.headers)]
        return nodes_for(route.template, request.model, members.decode, members.prefill)[:_TRIES]

    async def _try_each(
        self,
        nodes: Sequence[Node],
        passed: Passed,
        request: ClientRequest,
        client: ClientResponse,
        deadline: asyncio.Timeout,
    ) -> None:
        problem = ""
        for node in nodes:
            is_last = node is nodes[-1]
            left_s = (deadline.when() or 0.0) - asyncio.get_running_loop().time()
            client.record.asks(*((node, None) if node.role == "decode" else (None, node)))
            leg = request.trace.leg(node.role, node.url)
            traced = replace(passed, headers=passed.headers + leg.line)
            try:
                with node.carrying(request.prompt_bytes):
                    async with _asked(self._attempts.upstream, node, traced, left_s) as answer:
                        if answer.is_stream and answer.status == 200:
                            return await _relay_stream(answer, client)
                        whole = await answer.read_all()
                        if answer.status < 500 or is_last:
                            head = [*headers.to_relay(answer.headers), (b"content-length", b"%d" % len(whole))]
                            return await client.answer(answer.status, head, whole)
            except UpstreamError as exc:
                self._attempts.members.report(node, exc.kind)
                problem = str(exc)
                leg.end(exc.kind)
            finally:
                leg.end()
        raise BadGatewayError(f"the node failed: {problem}")


def _understood(scope: Scope, client: ClientResponse, body: bytes) -> ClientRequest:
    """Return as much of a request as admission and the choice of a node want; a body that is no JSON is the node's to judge."""
    try:
        fields = split(body) if body else {}
        named = parse_qs(scope["query_string"].decode("latin-1")).get("model", [""])[0]  # where there is no body
        model = msgspec.json.decode(fields["model"], type=str) if "model" in fields else named
    except DECODE_ERRORS:
        fields, model = {}, ""
    return ClientRequest(
        endpoint=scope["path"],
        request_id=client.record.request_id,
        headers=scope["headers"],
        forwarded=headers.to_forward(scope["headers"], client.record.trace.line),
        fields=fields,
        model=model,
        prompt=memoryview(body),
        trace=client.record.trace,
    )


def _passed(scope: Scope, request: ClientRequest, body: bytes) -> Passed:
    """Return what a node is asked: the client's own path, query, kind of body and body."""
    kind = headers.find(scope["headers"], b"content-type")
    lines = [b"content-type: %b\r\n" % kind] if kind is not None else []
    lines += [request.forwarded.partition(b"\r\n")[2], headers.line("x-request-id", request.request_id)]
    path, query = quote(scope["path"]), quote(scope["query_string"], safe=string.punctuation)
    return Passed(
        method=scope["method"],
        path_and_query=f"{path}?{query}" if query else path,
        headers=b"".join(lines),
        body=body,
    )


@asynccontextmanager
async def _asked(upstream: Upstream, node: Node, passed: Passed, timeout_s: float) -> AsyncIterator[UpstreamResponse]:
    """Ask a node; its answer stays open for the block."""
    if passed.method == "GET":
        async with upstream.get(node.url, passed.path_and_query, passed.headers, timeout_s=timeout_s) as answer:
            yield answer
        return
    answer = await upstream.post(node.url, passed.path_and_query, passed.headers, passed.body)
    try:
        yield answer
    finally:
        answer.close()


async def _relay_stream(answer: UpstreamResponse, client: ClientResponse) -> None:
    first = await answer.read_event()
    client.claim.streams()
    if not client.begin_stream(answer.status, headers.to_relay(answer.headers), first):
        await client.wait_writable()
    try:
        await answer.pour(client.write, client.wait_writable)
    except UpstreamError as exc:
        raise StreamBrokenError(exc.kind, str(exc)) from exc
    client.end()
