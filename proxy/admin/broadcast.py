"""One call to several nodes of both roles: adapters are loaded and caches emptied on all of them, or it is said where not."""

import asyncio
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final, Literal

import msgspec

from baton.contracts.decoding import DECODE_ERRORS
from baton.proxy.errors import UpstreamError
from baton.proxy.http.headers import line
from baton.proxy.http.upstream import Upstream
from baton.proxy.nodes.node import Node
from baton.proxy.nodes.views import NodeResult

TIMEOUT_S: Final = 120.0  # of each node: an adapter may have to be fetched first
MAX_TEXT: Final = 500  # characters of an answer that is not JSON

_VARIABLES: Final[Mapping[str, str]] = {  # without which vLLM does not have the route
    "/v1/load_lora_adapter": "VLLM_ALLOW_RUNTIME_LORA_UPDATING",
    "/v1/unload_lora_adapter": "VLLM_ALLOW_RUNTIME_LORA_UPDATING",
    "/reset_prefix_cache": "VLLM_SERVER_DEV_MODE",
}
FanOutPath = Literal["/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/reset_prefix_cache"]


async def fan_out(upstream: Upstream, nodes: Sequence[Node], path_and_query: str, body: bytes) -> list[NodeResult]:
    return list(await asyncio.gather(*(_call(upstream, node, path_and_query, body) for node in nodes)))


def result_of(node: Node, status: int | None, answer: Any) -> NodeResult:
    """`status` is None if it did not answer; `answer` its body, decoded where that is JSON, or why there is none."""
    ok = status is not None and 200 <= status < 300
    return NodeResult(url=node.url, role=node.role, ok=ok, status=status, answer=answer)


async def _call(upstream: Upstream, node: Node, path_and_query: str, body: bytes) -> NodeResult:
    headers = line("content-type", "application/json") if body else b""
    try:
        async with asyncio.timeout(TIMEOUT_S):
            answer = await upstream.post(node.url, path_and_query, headers, body)
            try:
                received = await answer.read_all()
            finally:
                answer.close()
    except UpstreamError as exc:
        return result_of(node, None, str(exc))
    except TimeoutError:
        return result_of(node, None, "it did not answer in time")
    if answer.status == HTTPStatus.NOT_FOUND and (variable := _missing(node, path_and_query.partition("?")[0])):
        return result_of(node, answer.status, f"the node does not have this route: start it with {variable}=1")
    return result_of(node, answer.status, _decoded(received))


def _missing(node: Node, path: str) -> str | None:
    """Return the environment variable that turns a route on, if the node has said that it does not have the route."""
    routes = node.info.routes if node.info else None
    return None if routes is None or path in routes else _VARIABLES.get(path)


def _decoded(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body) if body else None
    except DECODE_ERRORS:
        return body.decode(errors="replace")[:MAX_TEXT]
