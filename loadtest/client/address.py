"""Where the server is: its URL, and what its host's name stands for."""

import asyncio
import socket
import time
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from baton.loadtest.errors import UsageError

FRESH_S: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """A server, and the path under which its API stands."""

    host: str
    port: int
    tls: bool
    prefix: str  # without a slash at its end

    @property
    def authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.tls else 80) else f"{host}:{self.port}"


def parse_address(url: str) -> Address:
    """Read an http or https base URL, with or without `/v1` at its end. Raises `UsageError`: it is none."""
    if not url.isascii() or not url.isprintable():
        raise UsageError(f"{url!r} is no URL: it has letters that URLs have not")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as exc:
        raise UsageError(f"{url!r} is no URL: {exc}") from exc
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(f"{url!r} is no URL of the form http://host:port")
    if parts.username is not None or parts.query or parts.fragment:
        raise UsageError("a URL with a user, a query or a fragment is no base URL; keys are given with --api-key")
    tls = parts.scheme == "https"
    prefix = parts.path.rstrip("/").removesuffix("/v1")
    return Address(host=parts.hostname, port=port or (443 if tls else 80), tls=tls, prefix=prefix)


class Names:
    """The addresses of one host, asked for once a minute: a look-up for each of thousands of connections would be in their TTFT."""

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
