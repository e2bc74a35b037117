"""Finding the decode node that holds a stored response: the proxy keeps no list, it asks.

So any worker and any replica of the proxy finds it, after a restart too, and a node that went away took its responses
with it. With one decode node there is nothing to ask.
"""

import asyncio
from collections.abc import Sequence
from typing import Final
from urllib.parse import quote

from baton.proxy.errors import UnavailableError, UpstreamError
from baton.proxy.http.upstream import Upstream
from baton.proxy.nodes.node import TAKES_WORK, Node
from baton.proxy.request.endpoints import RESPONSES

ASK_S: Final = 15.0


async def holder_of(upstream: Upstream, decode: Sequence[Node], response_id: str, headers: bytes) -> Node:
    """Return the node that holds a response; if none does, any, which will say so."""
    ready = [node for node in decode if node.state in TAKES_WORK]
    if not ready:
        raise UnavailableError("no decode node is ready")
    if len(decode) == 1:
        return ready[0]
    path = f"{RESPONSES}/{quote(response_id, safe='')}"
    asking = [asyncio.create_task(_holds(upstream, node, path, headers)) for node in ready]
    try:
        for answered in asyncio.as_completed(asking):
            if await answered:  # the others need not answer
                return next(n for n, each in zip(ready, asking, strict=True) if each.done() and each.result())
    finally:
        for each in asking:
            each.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
    if any(each.result() is None for each in asking) or len(ready) < len(decode):
        raise UnavailableError(f"no node that answers holds the response '{response_id}', and one does not answer")
    return ready[0]


async def _holds(upstream: Upstream, node: Node, path: str, headers: bytes) -> bool | None:
    """Ask a node; None if it does not say."""
    try:
        async with upstream.get(node.url, path, headers, timeout_s=ASK_S) as answer:
            return None if answer.status >= 500 else answer.status == 200
    except UpstreamError:
        return None
