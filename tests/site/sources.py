"""What Sphinx reads: the repository's pages where they lie, with the navigation added and the quick start cut out of README.md.

Since every page keeps its place, links between pages need no translation.
"""

import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from tests.site.markdown_links import slug_of
from tests.site.nav import QUICK_START, README, markdown_files

QUICK_START_SECTIONS = ("Try it on a laptop", "A real model on GPUs or NPUs", "Settings")
POINTER = f"## {QUICK_START_SECTIONS[0]}\n\nSee the [quick start]({QUICK_START}); a real model and settings are there too.\n\n"
SECTION = re.compile(r"^(?=## )", re.MULTILINE)
PAGES_OF_DATA = ("*.json", "*.svg", "*.png")


def write(root: Path, out: Path, nav: Mapping[str, Sequence[str]]) -> None:
    """Write the tree that Sphinx reads into `out`."""
    for file in markdown_files(root):
        _put(out / file.relative_to(root), translated(file.read_text(encoding="utf-8")))
    for pattern in PAGES_OF_DATA:
        for file in (root / "docs").rglob(pattern):
            target = out / file.relative_to(root)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, target)
    readme, quick_start = split((out / README).read_text(encoding="utf-8"))
    _put(out / QUICK_START, quick_start)
    labels = {page: label((out / page).read_text(encoding="utf-8")) for pages in nav.values() for page in pages}
    _put(out / README, readme + navigation(nav, labels))
    for folder in folders(nav):
        index = out / folder / README
        _put(index, index.read_text(encoding="utf-8") + tree(_inside(folder, nav), labels))


def split(readme: str) -> tuple[str, str]:
    """Return README.md without the sections of the quick start, and these as a page of their own.

    Raises:
        ValueError: README.md has not all of them.
    """
    sections = {part.partition("\n")[0].removeprefix("## "): part for part in SECTION.split(readme)}
    if missing := [title for title in QUICK_START_SECTIONS if title not in sections]:
        raise ValueError(f"{README} has no section {', '.join(map(repr, missing))} (tests/site/sources.py)")
    moved = [sections[title] for title in QUICK_START_SECTIONS]
    sections = {title: part for title, part in sections.items() if title not in QUICK_START_SECTIONS[1:]}
    sections[QUICK_START_SECTIONS[0]] = POINTER
    return "".join(sections.values()), "# Quick start\n\n" + "".join(moved)


def translated(text: str) -> str:
    """Return a page with links to sections of the quick start led to where these are on the site."""
    for title in QUICK_START_SECTIONS:
        text = text.replace(f"{README}#{slug_of(title)})", f"{QUICK_START}#{slug_of(title)})")
    return text


def label(page: str) -> str:
    """Return what the sidebar calls a page: its title up to a colon, without marks."""
    return page.partition("\n")[0].removeprefix("# ").partition(": ")[0].replace("`", "")


def navigation(nav: Mapping[str, Sequence[str]], labels: Mapping[str, str]) -> str:
    """Return the tables of contents for the first page: one for each heading; of a folder, its first page alone."""
    inside = {page for folder in folders(nav) for page in _inside(folder, nav)}
    trees = (tree([page for page in pages if page not in inside], labels, heading) for heading, pages in nav.items())
    return "".join(trees)


def folders(nav: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the folders whose README.md is their index."""
    return [page.removesuffix(README) for pages in nav.values() for page in pages if page.endswith(f"/{README}")]


def tree(pages: Iterable[str], labels: Mapping[str, str], caption: str = "") -> str:
    """Return a table of contents as MyST writes it; the page does not show it, the sidebar does."""
    options = [":hidden:", f":caption: {caption}" if caption else ""]
    return "\n".join(
        ["", "```{toctree}", *filter(None, options), "", *(f"{labels[page]} </{page}>" for page in pages), "```", ""]
    )


def _inside(folder: str, nav: Mapping[str, Sequence[str]]) -> list[str]:
    return [page for pages in nav.values() for page in pages if page.startswith(folder) and page != folder + README]


def _put(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
