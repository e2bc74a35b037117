"""The admin API: who is a member, and what all members shall do. It needs a token of its own.

Nothing here is for clients. Without `proxy.admin_token_file` every route answers 403 and says so.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from http import HTTPStatus
from typing import Any, Final, TypeVar

import msgspec
from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from fastapi.security import HTTPBearer
from starlette.exceptions import HTTPException

from baton.contracts.decoding import DECODE_ERRORS
from baton.contracts.http import error_body
from baton.contracts.kv_transfer import Role
from baton.proxy.admin.broadcast import FanOutPath, fan_out, result_of
from baton.proxy.admin.node_views import view
from baton.proxy.admin.override_store import OverrideStoreError
from baton.proxy.admin.token import AdminToken
from baton.proxy.admin.worker_group import WorkerGroup
from baton.proxy.errors import BadRequestError, ProxyError
from baton.proxy.http.address import is_base_url
from baton.proxy.http.upstream import Upstream
from baton.proxy.nodes import base_models
from baton.proxy.nodes.node import Node
from baton.proxy.nodes.registry import NodeRegistry
from baton.proxy.nodes.views import (
    AdminState,
    DrainRequest,
    EvacuateRequest,
    FanOutResult,
    NodeAddress,
    NodeList,
    NodeResult,
    NodeView,
    RoleRequest,
)

OFF: Final = "the admin API is off: proxy.admin_token_file is not set"
MAX_BODY_BYTES: Final = 1 << 20
T = TypeVar("T")
REFUSALS: Final[dict[int | str, dict[str, Any]]] = {
    400: {"description": "The request is malformed"},
    401: {"description": "The admin token is needed"},
    403: {"description": "The admin API is off: `proxy.admin_token_file` is not set"},
    404: {"description": "There is no such node"},
    502: {"description": "Some worker or node did not do it"},
}
_bearer: Final = HTTPBearer(auto_error=False, description="The token in `proxy.admin_token_file`")


def admin_router(
    members: NodeRegistry,
    worker_group: WorkerGroup,
    upstream: Upstream,
    token: AdminToken | None,
    about: dict[str, Any],
) -> APIRouter:
    """Return the routes; `about` is what never changes of the state."""
    router = APIRouter(
        tags=["admin"], route_class=guarded_by(token), dependencies=[Depends(_bearer)], responses=REFUSALS
    )
    _add_member_routes(router, members, worker_group, about)
    _add_fan_out_routes(router, members, worker_group, upstream)
    return router


def authorise(request: Request, token: AdminToken | None) -> None:
    """Raise what refuses a request that does not carry the token."""
    if token is None:
        raise HTTPException(HTTPStatus.FORBIDDEN, OFF)
    if not token.opens(request.headers.get("authorization", "")):
        raise HTTPException(HTTPStatus.UNAUTHORIZED, "the admin token is needed", {"www-authenticate": "Bearer"})


def guarded_by(token: AdminToken | None) -> type[APIRoute]:
    """Return a kind of route that asks for the token before it reads anything of the body."""

    class GuardedRoute(APIRoute):
        def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
            handle = super().get_route_handler()

            async def guarded(request: Request) -> Response:
                authorise(request, token)
                return await handle(request)

            return guarded

    return GuardedRoute


def _add_member_routes(
    router: APIRouter, members: NodeRegistry, worker_group: WorkerGroup, about: dict[str, Any]
) -> None:
    @router.get("/admin/nodes")
    async def nodes() -> NodeList:
        """List all members."""
        return NodeList(nodes=await worker_group.nodes())

    @router.get("/admin/state")
    async def state() -> AdminState:
        """Say who is a member, why, who is on the way out, and how this proxy is set and doing."""
        return AdminState(**about, **await worker_group.state())

    @router.post("/admin/nodes", status_code=201, responses={200: {"model": NodeView}})
    async def add(address: NodeAddress, response: Response) -> NodeView:
        """Make a node a member. One that is already (200) gets work again if it was drained."""
        node, is_new = await _change(worker_group, partial(_add, members, address.role, _base_url(address.url)))
        if not is_new:
            response.status_code = HTTPStatus.OK
        return node

    @router.delete("/admin/nodes")
    async def remove(url: str) -> NodeList:
        """Make a node leave: no new work, what it carries goes on. It stays out until it is added again."""
        return await _change(worker_group, partial(_each, members, url, members.remove))

    @router.post("/admin/nodes/drain")
    async def drain(request: DrainRequest) -> NodeList:
        """Give a node no more work; what it carries goes on, and it stays a member."""
        tell = partial(members.drain, draining=request.draining)
        return await _change(worker_group, partial(_each, members, request.url, tell))

    @router.post("/admin/nodes/evacuate")
    async def evacuate(request: EvacuateRequest) -> NodeList:
        """Have the streams that a decode node has now go on on others; `streams_left` and `streams_staying` say how far that is."""
        tell = partial(_evacuate, members, drain=request.drain)
        return await _change(worker_group, partial(_each, members, request.url, tell))

    @router.post("/admin/nodes/role")
    async def change_role(request: RoleRequest) -> NodeList:
        """Have a node with `transfer.both_ways` serve in the other role, in the same process: its streams go on on other decode nodes, its other requests to their ends."""
        return await _change(worker_group, partial(_change_role, members, request))


async def _change(worker_group: WorkerGroup, act: Callable[[], T]) -> T:
    try:
        return await worker_group.change(act)
    except OverrideStoreError as exc:
        raise HTTPException(HTTPStatus.SERVICE_UNAVAILABLE, str(exc)) from exc


def _add(members: NodeRegistry, role: Role, url: str) -> tuple[NodeView, bool]:
    present = members.find(url)
    if present and not any(node.role == role for node in present):
        raise HTTPException(HTTPStatus.CONFLICT, f"{url} is a {present[0].role} node already")
    return view(members.add(role, url)), not present


def _evacuate(members: NodeRegistry, node: Node, *, drain: bool) -> None:
    if node.role != "decode":
        raise HTTPException(HTTPStatus.BAD_REQUEST, f"{node.url} is no decode node: it has no streams")
    if drain:
        members.drain(node)
    members.evacuate(node)


def _change_role(members: NodeRegistry, request: RoleRequest) -> NodeList:
    for node in _found(members, request.url):
        if node.role == request.role:
            continue
        if (unchanged_s := members.roles_unchanged_s) is not None and unchanged_s < request.unchanged_for_s:
            raise HTTPException(HTTPStatus.CONFLICT, f"a role was changed {unchanged_s:.1f} s ago")
        if node.info is None or not node.info.both_ways:
            raise HTTPException(
                HTTPStatus.CONFLICT,
                f"{node.url} only has the role that it was started in: transfer.both_ways is off there",
            )
        if len(members.of(node.role)) == 1:
            raise HTTPException(HTTPStatus.CONFLICT, f"{node.url} is the only {node.role} node")
        members.change_role(node, request.role, ago_s=request.ago_s)
    return NodeList(nodes=list(map(view, members.find(request.url.rstrip("/")))))


def _each(members: NodeRegistry, url: str, act: Callable[[Node], None]) -> NodeList:
    found = _found(members, url)
    for node in found:
        act(node)
    return NodeList(nodes=[view(node) for node in found])


def _add_fan_out_routes(
    router: APIRouter, members: NodeRegistry, worker_group: WorkerGroup, upstream: Upstream
) -> None:
    one_at_a_time = asyncio.Lock()

    async def send_to_nodes(request: Request, path: FanOutPath, choose: Callable[[bytes], Sequence[Node]]) -> Response:
        body = await request.body()
        if len(body) > MAX_BODY_BYTES:
            raise HTTPException(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"the body is larger than {MAX_BODY_BYTES} bytes")
        query = f"?{request.url.query}" if request.url.query else ""
        async with one_at_a_time:
            await members.refresh()  # another call, perhaps of another worker's, may have changed what they serve
            try:
                chosen = choose(body)
            except ProxyError as exc:
                return Response(exc.body(), exc.status, media_type="application/json")
            answers = await fan_out(upstream, chosen, path + query, body)
        silent = (node for node in members.all() if node.info is None)
        answers += [result_of(node, None, "it has not said yet what it serves") for node in silent]
        await worker_group.probe_now()  # what they serve may have changed
        return _joined(answers)

    responses: dict[int | str, dict[str, Any]] = {
        400: {"description": "It is not clear which base model is meant, or another one has an adapter of that name"},
        404: {"description": "No node serves that base model"},
        502: {"description": "Some node did not do it; the error names it, `nodes` has all answers"},
    }
    by_base = {"type": "object", "properties": {base_models.FIELD: {"type": "string"}}, "additionalProperties": True}
    lora = {"requestBody": {"required": True, "content": {"application/json": {"schema": by_base}}}}

    @router.post("/v1/load_lora_adapter", response_model=FanOutResult, responses=responses, openapi_extra=lora)
    async def load_lora_adapter(request: Request) -> Response:
        """Load a LoRA adapter on every node of its base model.

        The body is as vLLM takes it, with `base_model_name` where several base models are served.
        """
        choose = partial(_chosen, members, base_models.nodes_to_load)
        return await send_to_nodes(request, "/v1/load_lora_adapter", choose)

    @router.post("/v1/unload_lora_adapter", response_model=FanOutResult, responses=responses, openapi_extra=lora)
    async def unload_lora_adapter(request: Request) -> Response:
        """Unload a LoRA adapter from every node of its base model.

        The body is as vLLM takes it, with `base_model_name` where several base models have an adapter of that name.
        """
        choose = partial(_chosen, members, base_models.nodes_to_unload)
        return await send_to_nodes(request, "/v1/unload_lora_adapter", choose)

    @router.post("/reset_prefix_cache", response_model=FanOutResult, responses=responses)
    async def reset_prefix_cache(request: Request, base_model_name: str = "") -> Response:
        """Empty the prefix cache of every node, or of those of one base model; the query is else as vLLM takes it."""

        def choose(_: bytes) -> Sequence[Node]:
            return (
                base_models.nodes_of(members.all(), base_model_name)
                if base_model_name
                else [node for node in members.all() if node.info]
            )

        return await send_to_nodes(request, "/reset_prefix_cache", choose)


def _chosen(members: NodeRegistry, choose: Callable[[Sequence[Node], str, str], list[Node]], body: bytes) -> list[Node]:
    """Return the nodes that a call about an adapter is for. Raises `ProxyError`: its body does not say."""
    try:
        said = msgspec.json.decode(body, type=_AboutAdapter)
    except DECODE_ERRORS as exc:
        raise BadRequestError(f"the body does not name an adapter: {exc}") from exc
    return choose(members.all(), said.lora_name, said.base_model_name or "")


class _AboutAdapter(msgspec.Struct):
    """What the proxy reads of a call about an adapter."""

    lora_name: str
    base_model_name: str | None = None


def _joined(results: list[NodeResult]) -> Response:
    content = FanOutResult(nodes=results).model_dump()
    failed = [f"{each.role} node {each.url} ({each.status or each.answer})" for each in results if not each.ok]
    if not failed:
        return JSONResponse(content)
    message = f"{len(failed)} of {len(results)} nodes did not do it: {', '.join(failed)}"
    return JSONResponse({**error_body(message, kind="upstream_error", code=502), **content}, 502)


def _found(members: NodeRegistry, url: str) -> list[Node]:
    found = members.find(url.rstrip("/"))
    if not found:
        raise HTTPException(HTTPStatus.NOT_FOUND, f"{url} is no member")
    return found


def _base_url(text: str) -> str:
    if not is_base_url(text):
        raise HTTPException(HTTPStatus.BAD_REQUEST, f"{text!r} is not of the form http://host:port")
    return text.rstrip("/")
