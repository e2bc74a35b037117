"""FastAPI in front and httpx behind: the shape of vLLM's example proxies. The legs run one after the other, as there."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
from fastapi import FastAPI, Request
from fastapi.responses import StreamingResponse

from benchmarks.proxy.relays.common import PATHS, arguments, prefill_body, run


def make_app(prefill_url: str, decode_url: str) -> FastAPI:
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with (
            httpx.AsyncClient(base_url=prefill_url, timeout=None, limits=limits) as prefill,  # noqa: S113  # as there
            httpx.AsyncClient(base_url=decode_url, timeout=None, limits=limits) as decode,  # noqa: S113
        ):
            app.state.prefill, app.state.decode = prefill, decode
            yield

    app = FastAPI(lifespan=lifespan)

    async def serve(request: Request) -> StreamingResponse:
        body = await request.json()
        answer = await app.state.prefill.post(request.url.path, json=prefill_body(body))
        answer.raise_for_status()
        given = answer.json().get("kv_transfer_params")

        async def relay() -> AsyncIterator[bytes]:
            asked = {**body, "kv_transfer_params": given} if given else body
            async with app.state.decode.stream("POST", request.url.path, json=asked) as response:
                response.raise_for_status()
                async for chunk in response.aiter_bytes():
                    yield chunk

        return StreamingResponse(relay(), media_type="text/event-stream")

    for path in PATHS:
        app.post(path)(serve)
    return app


if __name__ == "__main__":
    given = arguments()
    run(make_app(given.prefill, given.decode), given.port)
