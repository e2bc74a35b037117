"""Links of built HTML pages: every file and id that they name is there, and nothing is fetched from elsewhere."""

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

FETCHED = {("link", "href"), ("script", "src"), ("img", "src"), ("source", "src"), ("iframe", "src")}
FOLLOWED = {("a", "href"), *FETCHED}
HINTS = ("canonical", "author", "index", "search", "next", "prev")  # `rel` of a <link> that no browser loads
CSS_ADDRESS = re.compile(r"""(?:url\(\s*|@import\s+)["']?((?:https?:)?//[^"')\s]+)""")


class Page(HTMLParser):
    """What a page has and names."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[tuple[str, bool]] = []  # address, and whether a browser loads it by itself
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note ids and addresses."""
        values = {name: value or "" for name, value in attrs}
        self.ids |= {values[name] for name in ("id", "name") if name in values}
        for name, value in values.items():
            if (tag, name) in FOLLOWED:
                loaded = (tag, name) in FETCHED and values.get("rel", "") not in HINTS
                self.links.append((value, loaded))


def problems(site: Path) -> list[str]:
    """Return a sentence for each address of a site that leads nowhere, or that would be fetched."""
    pages = {file.resolve(): Page(file.read_text(encoding="utf-8")) for file in sorted(site.rglob("*.html"))}
    found = [
        f"{file.relative_to(site.resolve())}: {address}: {wrong}"
        for file, page in pages.items()
        for address, loaded in page.links
        if (wrong := _wrong(site.resolve(), file, pages, address, loaded=loaded))
    ]
    return [*dict.fromkeys(found), *_fetched_by_styles(site)]


def _wrong(site: Path, file: Path, pages: dict[Path, Page], address: str, *, loaded: bool) -> str:
    parts = urlsplit(address)
    if parts.scheme == "data":
        return ""
    if parts.scheme or parts.netloc:
        return "is fetched from elsewhere" if loaded else ""
    target = (file.parent / unquote(parts.path)).resolve() if parts.path else file
    if not target.is_relative_to(site) or not target.is_file():
        return "there is no such file"
    anchor = unquote(parts.fragment)
    if anchor and target in pages and anchor not in pages[target].ids:
        return "there is no such place"
    return ""


def _fetched_by_styles(site: Path) -> Iterator[str]:
    for file in sorted(site.rglob("*.css")):
        for address in CSS_ADDRESS.findall(file.read_text(encoding="utf-8")):
            yield f"{file.relative_to(site)}: {address}: is fetched from elsewhere"
