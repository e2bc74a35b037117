"""One call to several nodes of both roles: adapters are loaded and caches emptied on all of them, or it is said where not."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from types import MappingProxyType
from typing import Any, Final, Literal

import msgspec

from baton.proxy.errors import UpstreamError
from baton.proxy.http.headers import line
from baton.proxy.http.upstream import Upstream
from baton.proxy.nodes.node import Node

TIMEOUT_S: Final = 120.0  # of each node: an adapter may have to be fetched first
MAX_TEXT: Final = 500  # characters of an answer that is not JSON

_VARIABLES: Final[Mapping[str, str]] = MappingProxyType(  # without which vLLM does not have the route
    {
        "/v1/load_lora_adapter": "VLLM_ALLOW_RUNTIME_LORA_UPDATING",
        "/v1/unload_lora_adapter": "VLLM_ALLOW_RUNTIME_LORA_UPDATING",
        "/reset_prefix_cache": "VLLM_SERVER_DEV_MODE",
    }
)
FanOutPath = Literal["/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/reset_prefix_cache"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeAnswer:
    """What came of the call on one node."""

    node: Node
    status: int | None  # None: it did not answer
    answer: Any  # its body, decoded where that is JSON; or why there is none

    @property
    def ok(self) -> bool:
        return self.status is not None and 200 <= self.status < 300


async def fan_out(upstream: Upstream, nodes: Sequence[Node], path_and_query: str, body: bytes) -> list[NodeAnswer]:
    return list(await asyncio.gather(*(_call(upstream, node, path_and_query, body) for node in nodes)))


def not_asked(node: Node) -> NodeAnswer:
    """Return what stands for a node that has not said what it serves."""
    return NodeAnswer(node=node, status=None, answer="it has not said yet what it serves")


async def _call(upstream: Upstream, node: Node, path_and_query: str, body: bytes) -> NodeAnswer:
    headers = line("content-type", "application/json") if body else b""
    try:
        async with asyncio.timeout(TIMEOUT_S):
            answer = await upstream.post(node.url, path_and_query, headers, body)
            try:
                received = await answer.read_all()
            finally:
                answer.close()
    except UpstreamError as exc:
        return NodeAnswer(node=node, status=None, answer=str(exc))
    except TimeoutError:
        return NodeAnswer(node=node, status=None, answer="it did not answer in time")
    if answer.status == HTTPStatus.NOT_FOUND and (variable := _missing(node, path_and_query.partition("?")[0])):
        sentence = f"the node does not have this route: start it with {variable}=1"
        return NodeAnswer(node=node, status=answer.status, answer=sentence)
    return NodeAnswer(node=node, status=answer.status, answer=_decoded(received))


def _missing(node: Node, path: str) -> str | None:
    """Return the environment variable that turns a route on, if the node has said that it does not have the route."""
    routes = node.info.routes if node.info else None
    return None if routes is None or path in routes else _VARIABLES.get(path)


def _decoded(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body) if body else None
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return body.decode(errors="replace")[:MAX_TEXT]
