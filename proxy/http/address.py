"""Where a node listens, taken from its base URL once. Pure."""

import ipaddress
import re
from functools import lru_cache
from typing import NamedTuple

from yarl import URL


class Address(NamedTuple):
    """Host and port of a server."""

    host: str
    port: int
    tls: bool
    authority: str  # as the Host header has it
    prefix: str  # what stands before every path


_NAME = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9._-]*[A-Za-z0-9_])?\.?")


def is_base_url(text: str, *, may_have_path: bool = False) -> bool:
    """Whether a text is `http://host:port` or `https://host:port`, with or without the port, and no more than perhaps a path."""
    try:
        url = URL(text)
        host = url.raw_host or ""
        is_host = bool(ipaddress.IPv6Address(host)) if ":" in host else _NAME.fullmatch(host) is not None
        base = url.origin().with_path(url.path) if may_have_path else url.origin()
    except ValueError:
        return False
    return is_host and url.scheme in ("http", "https") and url == base


@lru_cache(maxsize=4096)
def address_of(base_url: str) -> Address:
    url = URL(base_url)
    if url.host is None or url.port is None:
        raise ValueError(f"{base_url!r} is no address of a server")
    return Address(
        url.host, url.port, url.scheme == "https", url.host_port_subcomponent or "", url.raw_path.rstrip("/")
    )
