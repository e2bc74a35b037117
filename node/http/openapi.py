"""Builds vLLM's OpenAPI document outside the event loop.

FastAPI builds the document at the first `GET /openapi.json`, in the event loop: for vLLM's schemas that took 3.6–5.4 s
on a loaded core, in which `/health`, probes and open streams waited.
"""

import asyncio
from typing import Any

OPENAPI_PATH = "/openapi.json"


class OpenApiBuilder:
    """Builds the document once, in a thread; FastAPI keeps it."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()

    async def build(self, app: Any) -> None:
        """Make `app`, a FastAPI application, keep its document. Requests that arrive during the build wait for it."""
        async with self._lock:
            if app.openapi_schema is None:
                await asyncio.to_thread(app.openapi)
