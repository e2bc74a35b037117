"""How this machine reaches what listens on it."""

from typing import Final

# Where to ask what listens everywhere.
LOOPBACK: Final = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104  # compared with, not bound


def own_url(host: str, port: int, *, is_encrypted: bool = False) -> str:
    """Return the base URL, on this machine, of a server that listens on `host`."""
    dialled = LOOPBACK.get(host, host)
    scheme = "https" if is_encrypted else "http"
    return f"{scheme}://{f'[{dialled}]' if ':' in dialled else dialled}:{port}"
