"""Where a node listens, taken from its base URL once. Pure."""

from functools import lru_cache
from typing import NamedTuple

from yarl import URL


class Address(NamedTuple):
    """One server."""

    host: str
    port: int
    tls: bool
    authority: str  # as the Host header has it
    prefix: str  # what stands before every path


@lru_cache(maxsize=4096)
def address_of(base_url: str) -> Address:
    """Parse a base URL.

    Raises:
        ValueError: it names no host.
    """
    url = URL(base_url)
    if url.host is None or url.port is None:
        raise ValueError(f"{base_url!r} is no address of a server")
    return Address(
        url.host, url.port, url.scheme == "https", url.host_port_subcomponent or "", url.raw_path.rstrip("/")
    )
