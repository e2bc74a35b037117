"""`/openapi.json` and `/docs`. The engine's part is asked of a node, once for each start of one, when the document is asked for."""

from typing import Any, Final

import msgspec
from fastapi import FastAPI
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.responses import HTMLResponse, JSONResponse

from baton.contracts.decoding import DECODE_ERRORS
from baton.proxy.errors import UpstreamError
from baton.proxy.http.upstream import Upstream
from baton.proxy.nodes.node import usable
from baton.proxy.nodes.registry import NodeRegistry
from baton.proxy.openapi.merge import merged
from baton.proxy.passthrough.routes import ROUTES
from baton.proxy.request.endpoints import DATA_ROUTES

PATH: Final = "/openapi.json"
ASK_S: Final = 20.0  # a node makes its document when it is first asked
_SERVED: Final = [
    *(("POST", path) for path in sorted(DATA_ROUTES)),
    *((route.method, route.template) for route in ROUTES),
]


class EngineDocument:
    """What a decode node says of its routes."""

    def __init__(self, members: NodeRegistry, upstream: Upstream) -> None:
        self._members = members
        self._upstream = upstream
        self._of = ""  # incarnation of the node that said it
        self._said: dict[str, Any] = {}

    async def get(self) -> dict[str, Any]:
        """Return it; empty while no node has one."""
        ready = usable(self._members.decode)
        if any(node.incarnation == self._of for node in ready):
            return self._said
        for node in ready:
            try:
                async with self._upstream.get(node.url, PATH, timeout_s=ASK_S) as answer:
                    said = msgspec.json.decode(await answer.read_all()) if answer.status == 200 else None
            except (UpstreamError, *DECODE_ERRORS):
                continue
            if isinstance(said, dict) and isinstance(said.get("paths"), dict):
                self._of, self._said = node.incarnation, said
                return said
        return {}


def add_document(api: FastAPI, engine: EngineDocument) -> None:
    @api.get(PATH, include_in_schema=False)
    async def document() -> JSONResponse:
        return JSONResponse(merged(api.openapi(), await engine.get(), _SERVED))

    @api.get("/docs", include_in_schema=False)
    async def docs() -> HTMLResponse:
        return get_swagger_ui_html(openapi_url=PATH, title=api.title)
