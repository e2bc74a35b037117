"""Long prompts, one at a time: the work for each takes milliseconds, and other requests' tokens pass in between."""

import asyncio
from typing import Final

LONG_BYTES: Final = 32 * 1024


class LongBodies:
    """Lets one request with a long body go on in every second turn of the event loop, the one that has waited longest."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()

    async def wait(self, body_bytes: int) -> None:
        """Wait for this body's turn; what follows until the next `await` has the turn for itself."""
        if body_bytes < LONG_BYTES:
            return
        await self._lock.acquire()
        asyncio.get_running_loop().call_soon(self._lock.release)
