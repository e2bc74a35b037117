"""What every ASGI application that is a fake needs."""

import json
from typing import Any


async def read_body(receive: Any) -> bytes:
    body, more = b"", True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    return body


async def answer_json(send: Any, status: int, value: Any) -> None:
    body = value if isinstance(value, bytes) else json.dumps(value).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def follow_lifespan(receive: Any, send: Any) -> None:
    """Say yes to the start and to the end."""
    while True:
        kind = (await receive())["type"]
        await send({"type": f"{kind}.complete"})
        if kind == "lifespan.shutdown":
            return
