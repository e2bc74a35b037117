"""The dashboard's routes: the page and its files for anybody, its data in two views, single transfers for operators."""

import time
from collections.abc import Callable
from functools import cache
from hashlib import blake2b
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final, NamedTuple

from fastapi import APIRouter, Request, Response
from starlette.exceptions import HTTPException

from baton.contracts.kv_transfer import is_transfer_id
from baton.proxy.admin.routes import authorise, guarded_by
from baton.proxy.admin.token import AdminToken
from baton.proxy.dashboard.dashboard import Dashboard

PAGE: Final = "/dashboard"
ANSWERS_PER_S: Final = 32.0  # for all viewers together; a page asks once a second
BURST: Final = 64.0
_FOLDER: Final = Path(__file__).parent / "page"
_PAGE_FILE: Final = "index.html"
_KINDS: Final = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
# Nothing from elsewhere, no script or style but our files, in no other page's frame; and no address leaves with a link.
_FENCE: Final = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "cross-origin-opener-policy": "same-origin",
}


class File(NamedTuple):
    """One file of the page, as it lies in the package."""

    content: bytes
    kind: str
    tag: str  # changes with the content


@cache
def files() -> dict[str, File]:
    """Return all of them by name, read at the first request: nothing else can be asked for."""
    contents = {path: path.read_bytes() for path in sorted(_FOLDER.iterdir()) if path.suffix in _KINDS}
    return {
        path.name: File(content, _KINDS[path.suffix], f'"{blake2b(content, digest_size=12).hexdigest()}"')
        for path, content in contents.items()
    }


class Pace:
    """A bucket that fills evenly: how many answers there may be."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._left = BURST
        self._at_s = clock()

    def allows(self) -> bool:
        now_s = self._clock()
        self._left = min(BURST, self._left + (now_s - self._at_s) * ANSWERS_PER_S)
        self._at_s = now_s
        if self._left < 1:
            return False
        self._left -= 1
        return True


def dashboard_router(dashboard: Dashboard, token: AdminToken | None) -> APIRouter:
    router, paces = APIRouter(), {False: Pace(), True: Pace()}  # by `for_operator`: others keep no operator out
    operators = APIRouter(route_class=guarded_by(token))

    def slow_down(*, for_operator: bool) -> None:
        if not paces[for_operator].allows():
            raise HTTPException(HTTPStatus.SERVICE_UNAVAILABLE, "too many look at the dashboard", {"retry-after": "2"})

    @router.get(PAGE, include_in_schema=False)
    @router.get(f"{PAGE}/{{name}}", include_in_schema=False)
    async def page(request: Request, name: str = _PAGE_FILE) -> Response:
        found = files().get(name)
        if found is None:
            raise HTTPException(HTTPStatus.NOT_FOUND, "no such file")
        head = {**_FENCE, "etag": found.tag, "cache-control": "no-cache"}
        if request.headers.get("if-none-match") == found.tag:
            return Response(status_code=HTTPStatus.NOT_MODIFIED, headers=head)
        return Response(found.content, media_type=found.kind, headers=head)

    @router.get(f"{PAGE}/api/feed", include_in_schema=False)
    async def feed(request: Request) -> Response:
        is_operator = "authorization" in request.headers
        if is_operator:
            authorise(request, token)
        slow_down(for_operator=is_operator)
        body = await dashboard.feed(for_operator=is_operator)
        return Response(body, media_type="application/json", headers={"cache-control": "no-store", **_FENCE})

    @operators.get(f"{PAGE}/api/transfers/{{transfer_id}}", include_in_schema=False)
    async def transfer(transfer_id: str, prefill: str, decode: str) -> dict[str, Any]:
        if not is_transfer_id(transfer_id):
            raise HTTPException(HTTPStatus.BAD_REQUEST, "a transfer is named by 32 hexadecimal digits")
        slow_down(for_operator=True)
        return await dashboard.timeline(transfer_id, prefill, decode)

    router.include_router(operators)
    return router
