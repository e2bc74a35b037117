"""Where members come from: sibling classes that each publish base URLs for one role, now and when it changes.

`dns.py` has the third of them. Which node is a member is decided in `registry.py`: whatever any source of its role names.
"""

from collections.abc import Callable, Iterable
from typing import Any, Protocol


class SourceError(ValueError):
    """The configuration names members in a way that nobody can follow; the message says which."""


Publish = Callable[[tuple[str, ...]], None]


class Source(Protocol):
    """Publishes URLs from `start` until `stop`."""

    name: str  # for people

    async def start(self, publish: Publish) -> None:
        """Publish what is known at once, and from then on whenever it changes."""
        ...

    async def stop(self) -> None:
        """Publish no more; idempotent."""
        ...

    def describe(self) -> dict[str, Any]:
        """Say where the source stands, for `/admin/state`."""
        ...


class StaticSource:
    """The URLs of the configuration."""

    name = "configuration"

    def __init__(self, urls: Iterable[str]) -> None:
        self._urls = tuple(dict.fromkeys(url.rstrip("/") for url in urls))

    async def start(self, publish: Publish) -> None:
        publish(self._urls)

    async def stop(self) -> None:
        """Nothing runs."""

    def describe(self) -> dict[str, Any]:
        return {"name": self.name, "urls": list(self._urls)}


class AdminSource:
    """What operators added at run time; gone when the proxy ends (not with one of its workers)."""

    name = "admin"

    def __init__(self) -> None:
        self._urls: dict[str, None] = {}  # in the order of their coming
        self._publish: Publish | None = None

    async def start(self, publish: Publish) -> None:
        self._publish = publish

    async def stop(self) -> None:
        self._publish = None

    def add(self, url: str) -> None:
        self._urls[url] = None
        self._tell()

    def discard(self, url: str) -> None:
        self._urls.pop(url, None)
        self._tell()

    def replace(self, urls: Iterable[str]) -> None:
        """Name these and no others."""
        self._urls = dict.fromkeys(urls)
        self._tell()

    @property
    def urls(self) -> tuple[str, ...]:
        """What was added."""
        return tuple(self._urls)

    def describe(self) -> dict[str, Any]:
        return {"name": self.name, "urls": list(self._urls)}

    def _tell(self) -> None:
        if self._publish is not None:
            self._publish(tuple(self._urls))
