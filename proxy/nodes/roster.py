"""Which URLs are members of one role, as their sources and operators say. Pure."""

from collections.abc import Iterable


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
