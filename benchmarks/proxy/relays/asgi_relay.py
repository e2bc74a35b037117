"""Pure ASGI in front and aiohttp behind, both legs at once, and nothing else: no retry, no metric, no check."""

import asyncio
from typing import Any, Final

import aiohttp
import msgspec

from benchmarks.proxy.relays.common import arguments, prefill_body, run

_GIVEN: Final = {  # made up, of the same size: the decode leg cannot wait for those that the prefill answer brings
    "do_remote_prefill": True,
    "do_remote_decode": False,
    "remote_block_ids": [[1]],
    "remote_engine_id": "0" * 32,
    "remote_request_id": "cmpl-0",
    "remote_host": "127.0.0.1",
    "remote_port": 5600,
}
_JSON: Final = {"content-type": "application/json"}


class Relay:
    def __init__(self, prefill_url: str, decode_url: str) -> None:
        self._prefill_url = prefill_url
        self._decode_url = decode_url
        self._session: aiohttp.ClientSession | None = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
            return
        data = b""
        more = True
        while more:
            message = await receive()
            data += message.get("body", b"")
            more = message.get("more_body", False)
        body = msgspec.json.decode(data)
        prefill = asyncio.create_task(self._prefill(scope["path"], msgspec.json.encode(prefill_body(body))))
        await self._decode(scope["path"], msgspec.json.encode({**body, "kv_transfer_params": _GIVEN}), send)
        await prefill

    async def _prefill(self, path: str, body: bytes) -> None:
        assert self._session is not None
        async with self._session.post(self._prefill_url + path, data=body, headers=_JSON) as answer:
            await answer.read()

    async def _decode(self, path: str, body: bytes, send: Any) -> None:
        assert self._session is not None
        async with self._session.post(self._decode_url + path, data=body, headers=_JSON) as answer:
            chunk = await answer.content.readany()
            head = [(b"content-type", answer.headers["content-type"].encode())]
            await send({"type": "http.response.start", "status": answer.status, "headers": head})
            while chunk:
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
                chunk = await answer.content.readany()
            await send({"type": "http.response.body", "body": b""})

    async def _live(self, receive: Any, send: Any) -> None:
        while True:
            kind = (await receive())["type"]
            if kind == "lifespan.startup":
                self._session = aiohttp.ClientSession(
                    connector=aiohttp.TCPConnector(limit=0),
                    timeout=aiohttp.ClientTimeout(total=None),
                    auto_decompress=False,
                    cookie_jar=aiohttp.DummyCookieJar(),
                )
            elif self._session is not None:
                await self._session.close()
            await send({"type": f"{kind}.complete"})
            if kind == "lifespan.shutdown":
                return


if __name__ == "__main__":
    given = arguments()
    run(Relay(given.prefill, given.decode), given.port)
