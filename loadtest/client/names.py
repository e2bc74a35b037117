"""A host's addresses, asked for once a minute: a look-up for each of thousands of connections would be in their TTFT."""

import asyncio
import socket
import time
from typing import Final

from baton.loadtest.client.address import Address

FRESH_S: Final = 60.0


class Names:
    """The addresses of one host."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._found: list[str] = []
        self._until_s = 0.0
        self._lock = asyncio.Lock()

    async def addresses(self) -> list[str]:
        """Return them in the resolver's order, at least one. Raises `OSError`: there is no such host."""
        async with self._lock:
            if time.monotonic() >= self._until_s:
                loop = asyncio.get_running_loop()
                infos = await loop.getaddrinfo(self._address.host, self._address.port, type=socket.SOCK_STREAM)
                self._found = list(dict.fromkeys(str(info[4][0]) for info in infos))
                self._until_s = time.monotonic() + FRESH_S
        return self._found
