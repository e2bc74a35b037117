"""The requests of this process, watched while a page is open, and forgotten then."""

import asyncio
from collections import deque
from typing import Any, Final

from baton.proxy.dashboard.watched import WatchedRequest
from baton.proxy.response.request_record import RequestRecord
from baton.proxy.telemetry.request_telemetry import RequestTelemetry

LOOK_S: Final = 10.0  # an open page asks again well within that
MOST_WATCHED: Final = 512  # requests at once; further ones are served unwatched
MOST_SHOWN: Final = 64  # of those under way; the newest
MOST_ENDED: Final = 96


class RequestRecorder:
    """Records requests for as long as a page is open."""

    def __init__(self, telemetry: RequestTelemetry) -> None:
        self._telemetry = telemetry
        self._live: dict[WatchedRequest, None] = {}  # in the order of their arrival
        self._ended: deque[dict[str, Any]] = deque(maxlen=MOST_ENDED)
        self._over: asyncio.TimerHandle | None = None

    @property
    def is_watched(self) -> bool:
        """Whether a page is open."""
        return self._over is not None

    def look(self) -> None:
        """Watch every request that comes from now on, until no page has asked for a while."""
        if self._over is not None:
            self._over.cancel()
        else:
            self._telemetry.listeners.append(self._begin)
        self._over = asyncio.get_running_loop().call_later(LOOK_S, self.stop)

    def stop(self) -> None:
        """Watch no more and forget everything; idempotent."""
        if self._over is not None:
            self._over.cancel()
            self._over = None
        if self._begin in self._telemetry.listeners:
            self._telemetry.listeners.remove(self._begin)
        self._live.clear()
        self._ended.clear()

    def shown(self) -> dict[str, Any]:
        live = list(self._live)
        return {
            "live": [watched.shown() for watched in live[-MOST_SHOWN:]],
            "live_total": len(live),
            "recent": list(self._ended),
        }

    def _begin(self, record: RequestRecord) -> None:
        if len(self._live) < MOST_WATCHED:
            self._live[WatchedRequest(record, self._end)] = None

    def _end(self, watched: WatchedRequest) -> None:
        if watched in self._live:  # else all pages have been closed since
            del self._live[watched]
            self._ended.append(watched.shown())
