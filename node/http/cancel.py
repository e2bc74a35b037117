"""`POST /baton/transfers/cancel`: no request needs these transfers any more.

The proxy calls it on a prefill node when a request ends in a way that the decode node may never have heard of. Without
it such a prompt would keep its blocks for `orphan_timeout_s`. It may be said any number of times, before or after the
transfer has begun; a decode node takes it too and stops waiting.
"""

import json

from baton.contracts.http import MAX_CANCELLED
from baton.contracts.kv_transfer import is_transfer_id
from baton.node.connector.connector_channel import ConnectorClient
from baton.node.errors import NoAnswerError
from baton.node.http.asgi import Receive, Scope, Send, read_body, send_error, send_json

MAX_BODY_BYTES = 64 * MAX_CANCELLED


async def cancel_transfers(connector: ConnectorClient, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer a request to `CANCEL_PATH`."""
    if scope["method"] != "POST":
        return await send_error(send, 405, f"{scope['path']} takes POST", [(b"allow", b"POST")])
    body = await read_body(receive, send, MAX_BODY_BYTES)
    if body is None:
        return None
    try:
        transfer_ids = _parse(body)
    except ValueError as exc:
        return await send_error(send, 400, str(exc))
    try:
        were_open = await connector.cancel(transfer_ids)
    except NoAnswerError as exc:
        return await send_error(send, 503, str(exc))
    return await send_json(send, 200, {"cancelled": len(transfer_ids), "were_open": were_open})


def _parse(body: bytes) -> list[str]:
    """Return the ids in a body, each once. Raises `ValueError`: it is no list of transfer ids, or one too long."""
    try:
        content = json.loads(body)
    except (ValueError, RecursionError) as exc:
        raise ValueError("the body is not valid JSON") from exc
    found = content.get("transfer_ids") if isinstance(content, dict) else None
    if not isinstance(found, list) or not all(is_transfer_id(item) for item in found):
        raise ValueError("'transfer_ids' must be a list of transfer ids")
    if len(found) > MAX_CANCELLED:
        raise ValueError(f"'transfer_ids' holds more than {MAX_CANCELLED} ids")
    return list(dict.fromkeys(found))
