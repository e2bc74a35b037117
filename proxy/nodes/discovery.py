"""Where members come from: sources that each publish base URLs for one role, and the roster that they make.

`dns.py` has the third source. Who is a member is decided in `registry.py`: whatever any source of its role names.
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
        self.urls = tuple(dict.fromkeys(url.rstrip("/") for url in urls))
        self._publish: Publish | None = None

    async def start(self, publish: Publish) -> None:
        self._publish = publish
        publish(self.urls)

    async def stop(self) -> None:
        self._publish = None

    def replace(self, urls: Iterable[str]) -> None:
        """Name these, each once, and no others."""
        self.urls = tuple(dict.fromkeys(urls))
        if self._publish is not None:
            self._publish(self.urls)

    def describe(self) -> dict[str, Any]:
        return {"name": self.name, "urls": list(self.urls)}


class Roster:
    """What every source of a role named last, less what an operator removed."""

    def __init__(self) -> None:
        self._named: dict[str, tuple[str, ...]] = {}  # by source, in the order in which they were first heard
        self._removed: set[str] = set()

    @property
    def removed(self) -> list[str]:
        """URLs that an operator removed although a source goes on naming them."""
        return sorted(self._removed)

    def name(self, source: str, urls: tuple[str, ...]) -> None:
        """Take what a source says now. A removal is forgotten with the last source that named the URL."""
        before = set(self._all())
        self._named[source] = urls
        self._removed -= before - set(self._all())

    def remove(self, url: str) -> None:
        """Keep a URL out for as long as a source goes on naming it."""
        self._removed.add(url)
        self._removed &= set(self._all())

    def keep_out(self, urls: Iterable[str]) -> None:
        """Take over what was removed elsewhere. A source that names it may not have been heard yet."""
        self._removed = set(urls)

    def restore(self, url: str) -> None:
        self._removed.discard(url)

    def wanted(self) -> list[str]:
        """Return the URLs that should be members, each once, in the sources' order."""
        return [url for url in self._all() if url not in self._removed]

    def _all(self) -> dict[str, None]:
        return dict.fromkeys(url for urls in self._named.values() for url in urls)
