"""TLS towards clients: what connections are encrypted with, made again when a file is replaced.

A whole context is made and put in the old one's place. A certificate loaded into the live one would leave it with a key
that does not fit, if the second of two files is replaced a moment later.
"""

import logging
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from baton.contracts.configuration.schema import ProxyConfig
from baton.proxy.http_server.file_watcher import LOOK_S, FileWatcher

logger = logging.getLogger(__name__)


class TlsError(ValueError):
    """TLS cannot be had with these files; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """Where certificate, key and authorities are."""

    certificate: Path
    key: Path  # may be the same file
    client_authorities: Path | None = None  # clients need a certificate of one of these

    @property
    def paths(self) -> list[Path]:
        return [self.certificate, self.key, *([self.client_authorities] if self.client_authorities else [])]


class Tls(FileWatcher[ssl.SSLContext]):
    """The context of the next connection."""

    def __init__(self, files: TlsFiles, look_s: float = LOOK_S) -> None:
        """Raises `TlsError`: the files cannot be used."""
        self.context: ssl.SSLContext
        self._is_first = True
        super().__init__(
            "the TLS certificate", files.paths, read=partial(context_of, files), take=self._replace, look_s=look_s
        )

    def _replace(self, context: ssl.SSLContext) -> None:
        self.context = context
        if not self._is_first:
            logger.warning("TLS certificate replaced")
        self._is_first = False


def files_of(config: ProxyConfig) -> TlsFiles | None:
    """Return the files of a configuration; None if it wants no TLS."""
    certificate = config.tls_cert_file
    if certificate is None:
        for name in ("tls_key_file", "tls_client_ca_file"):
            if getattr(config, name) is not None:
                raise TlsError(f"proxy.{name} is set and proxy.tls_cert_file is not")
        return None
    return TlsFiles(
        certificate=certificate, key=config.tls_key_file or certificate, client_authorities=config.tls_client_ca_file
    )


def context_of(files: TlsFiles) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = max(context.minimum_version, ssl.TLSVersion.TLSv1_2)  # some builds of Python accept less
    context.set_alpn_protocols(["http/1.1"])
    for path in files.paths:
        _try(f"cannot read the TLS file {path}", path.read_bytes)
    _try(
        f"the TLS certificate {files.certificate} cannot be used with the key {files.key}",
        # OpenSSL would ask for an encrypted key's password at the terminal.
        partial(context.load_cert_chain, files.certificate, files.key, password=lambda: ""),
    )
    if files.client_authorities is not None:
        _try(
            f"the TLS authorities {files.client_authorities} cannot be used",
            partial(context.load_verify_locations, files.client_authorities),
        )
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _try(problem: str, act: Callable[[], object]) -> None:
    try:
        act()
    except ssl.SSLError as exc:
        raise TlsError(f"{problem}: {exc.reason or 'it is not PEM, or encrypted'}") from exc
    except OSError as exc:
        raise TlsError(f"{problem}: {exc.strerror}") from exc
    except ValueError as exc:
        raise TlsError(f"{problem}: {exc}") from exc
