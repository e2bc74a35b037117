"""Builds the API-key middleware; reloads the keys when their file changes."""

import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from starlette.types import ASGIApp, Scope

from baton.proxy.auth import key_file
from baton.proxy.auth.counts import counts_of
from baton.proxy.auth.key_file import Key
from baton.proxy.auth.keyring import Keyring
from baton.proxy.auth.middleware import AccessMetrics, AuthMiddleware
from baton.proxy.http_server.connection_budget import ConnectionBudget
from baton.proxy.http_server.file_watcher import FileWatcher
from baton.proxy.telemetry.request_telemetry import RequestTelemetry
from baton.proxy.workers.slot import WorkerSlot

logger = logging.getLogger(__name__)

MOST_NAMED: Final = 20  # in one log line


class ApiKeyAuth:
    """All doors of one proxy that asks for keys."""

    def __init__(
        self, path: Path, telemetry: RequestTelemetry, claims: ConnectionBudget, slot: WorkerSlot | None
    ) -> None:
        """Raises `KeyFileError`: the file cannot be used."""
        self._telemetry = telemetry
        self._claims = claims
        self._counted = AccessMetrics(telemetry.metrics.registry)
        self._keyring = Keyring(counts_of(slot))
        self._follower = FileWatcher(
            "the file of API keys",
            [path],
            read=partial(key_file.read, path),
            take=self._take,
            failed=self._counted.file_is_broken,
        )

    def start(self) -> None:
        self._follower.start()

    async def stop(self) -> None:
        """Follow it no more; idempotent."""
        await self._follower.stop()

    def guard(
        self, app: ASGIApp, label: Callable[[Scope], str], kind: type[AuthMiddleware] = AuthMiddleware
    ) -> AuthMiddleware:
        return kind(app, label, self._keyring, self._counted, telemetry=self._telemetry, claims=self._claims)

    def _take(self, keys: tuple[Key, ...]) -> None:
        changes = self._keyring.adopt(keys)
        if any(changes.values()):
            names = {what: found[:MOST_NAMED] for what, found in changes.items()}
            logger.warning("API keys read", extra={"keys": len(self._keyring), **names})
