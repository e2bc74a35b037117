"""How this machine reaches what listens on it, and a look at whether that answers."""

import http.client
import ssl
from contextlib import closing
from typing import Final

from baton.contracts.configuration.schema import ProxyConfig

# Where to ask what listens everywhere.
LOOPBACK: Final = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104  # compared with, not bound


def own_url(host: str, port: int, *, is_encrypted: bool = False) -> str:
    """Return the base URL, on this machine, of a server that listens on `host`."""
    dialled = LOOPBACK.get(host, host)
    scheme = "https" if is_encrypted else "http"
    return f"{scheme}://{f'[{dialled}]' if ':' in dialled else dialled}:{port}"


def ask_own(host: str, port: int, path: str, timeout_s: float, *, is_encrypted: bool = False) -> tuple[int, bytes]:
    """Return status and body of what a server on this machine answers.

    Without a path, 200 if it takes connections, with TLS a handshake. Its certificate is not verified: it has another
    name than loopback's. Raises `OSError` or `HTTPException`.
    """
    dialled = LOOPBACK.get(host, host)
    connection = http.client.HTTPConnection(dialled, port, timeout=timeout_s)
    if is_encrypted:
        unverified = ssl._create_unverified_context()  # noqa: S323  # our own process
        connection = http.client.HTTPSConnection(dialled, port, timeout=timeout_s, context=unverified)
    with closing(connection):
        if not path:
            connection.connect()
            return http.client.OK, b""
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read()


def ask_own_proxy(proxy: ProxyConfig, path: str, timeout_s: float) -> tuple[int, bytes]:
    """Ask the proxy of this configuration likewise; where clients need a certificate, which we lack, a handshake will do."""
    asked = "" if proxy.tls_client_ca_file is not None else path
    return ask_own(proxy.host, proxy.port, asked, timeout_s, is_encrypted=proxy.tls_cert_file is not None)
