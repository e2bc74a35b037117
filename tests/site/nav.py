"""`docs/nav.yaml`: which pages stand under which heading of the site's navigation. Every page stands somewhere, once."""

from collections.abc import Sequence
from pathlib import Path

import yaml

FILE = "docs/nav.yaml"
README = "README.md"  # the site's first page
QUICK_START = "quick-start.md"  # made of parts of it
PROJECT = "Project"  # the heading that pages of the root which have no other stand under


class NavError(Exception):
    """The navigation and the pages do not agree; a sentence for each difference."""


def markdown_files(root: Path) -> list[Path]:
    """Return all pages of the repository: those in its root and in docs."""
    return [*sorted(root.glob("*.md")), *sorted((root / "docs").rglob("*.md"))]


def read(root: Path) -> dict[str, list[str]]:
    """Return heading → pages, in order, as paths from the root.

    Raises:
        NavError: a page is missing, is named twice, or stands nowhere.
    """
    named = yaml.safe_load((root / FILE).read_text(encoding="utf-8"))
    pages = [file.relative_to(root).as_posix() for file in markdown_files(root)]
    nav = {
        heading: [page for entry in entries for page in _expanded(entry, pages)] for heading, entries in named.items()
    }
    placed = [page for entries in nav.values() for page in entries]
    rest = [page for page in pages if "/" not in page and page not in (README, *placed)]
    nav[PROJECT] = [*nav.get(PROJECT, []), *rest]
    if wrong := _differences([*placed, *rest], pages):
        raise NavError("\n".join(wrong))
    return nav


def _differences(placed: Sequence[str], pages: Sequence[str]) -> list[str]:
    return [
        *(f"{FILE} names {page}, which is not there" for page in placed if page not in (*pages, QUICK_START)),
        *(f"{FILE} names {page} twice" for page in dict.fromkeys(placed) if placed.count(page) > 1),
        *(f"{FILE} has no place for {page}" for page in pages if page not in (*placed, README)),
    ]


def _expanded(entry: str, pages: Sequence[str]) -> list[str]:
    """Return the page, or those of a folder (`docs/decisions/`), its README.md first."""
    if not entry.endswith("/"):
        return [entry]
    return [entry + README, *(page for page in pages if page.startswith(entry) and page != entry + README)]
