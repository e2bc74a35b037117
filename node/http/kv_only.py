"""Requests of a decode node that are for the KV alone: one whose KV does not come is left, and computes nothing."""

import asyncio

from baton.node.connector.connector_channel import Outcomes
from baton.node.http.asgi import Message, Receive


def leave_without_kv(receive: Receive, transfer_id: str, outcomes: Outcomes) -> Receive:
    """Return a `receive` that tells the application that its client has left once a transfer has failed; vLLM ends the request then."""

    async def received() -> Message:
        coming = asyncio.ensure_future(receive())
        failed = asyncio.ensure_future(outcomes.wait_until_failed(transfer_id))
        try:
            await asyncio.wait((coming, failed), return_when=asyncio.FIRST_COMPLETED)
            return coming.result() if coming.done() else {"type": "http.disconnect"}
        finally:
            coming.cancel()
            failed.cancel()

    return received
