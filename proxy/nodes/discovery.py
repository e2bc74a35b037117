"""Where members come from: sibling classes that each publish base URLs for one role, now and when it changes.

`dns.py` has the third of them. Which node is a member is decided in `registry.py`: whatever any source of its role
names.
"""

from collections.abc import Callable, Iterable
from typing import Any, Protocol


class SourceError(ValueError):
    """The configuration names members in a way that the proxy cannot follow; the message says which."""


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


class ListSource:
    """A list of URLs: that of the configuration, or what operators added at run time, which is gone when the proxy ends."""

    def __init__(self, name: str, urls: Iterable[str] = ()) -> None:
        self.name = name
        self._urls = tuple(dict.fromkeys(url.rstrip("/") for url in urls))
        self._publish: Publish | None = None

    async def start(self, publish: Publish) -> None:
        self._publish = publish
        publish(self._urls)

    async def stop(self) -> None:
        self._publish = None

    @property
    def urls(self) -> tuple[str, ...]:
        return self._urls

    def replace(self, urls: Iterable[str]) -> None:
        """Name these, each once, and no others."""
        self._urls = tuple(dict.fromkeys(urls))
        if self._publish is not None:
            self._publish(self._urls)

    def describe(self) -> dict[str, Any]:
        return {"name": self.name, "urls": list(self._urls)}
