"""Links of Markdown files as they lie in the repository: files, headings, and the form of what leads outside."""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from markdown_it import MarkdownIt
from markdown_it.token import Token

HOST = re.compile(r"(?:[a-z0-9](?:[a-z0-9-]*[a-z0-9])?\.)+[a-z0-9-]{2,}|localhost|[\d.]{7,15}", re.IGNORECASE)


class Link(NamedTuple):
    line: int  # where its paragraph or table row begins, from 1
    target: str


def links_of(text: str) -> Iterator[Link]:
    """Yield all links and pictures of a Markdown text; what stands in code is none."""
    for token in _parser().parse(text):
        for inline in token.children or ():
            target = inline.attrGet("href") if inline.type == "link_open" else inline.attrGet("src")
            if isinstance(target, str):
                yield Link(_line(token), target)


@cache
def anchors_of(text: str) -> set[str]:
    """Return what `#…` may name: headings as code hosts spell them."""
    seen: Counter[str] = Counter()
    found = set()
    for heading, inline in pairwise(_parser().parse(text)):
        if heading.type == "heading_open":
            slug = slug_of(_plain(inline))
            found.add(f"{slug}-{seen[slug]}" if seen[slug] else slug)
            seen[slug] += 1
    return found


def slug_of(title: str) -> str:
    """Return a heading's anchor: lower case, punctuation left out, a hyphen for each blank."""
    kept = (c for c in title.strip().lower() if c in "-_ " or unicodedata.category(c)[0] in "LNM")
    return "".join(kept).replace(" ", "-")


def problems(root: Path, files: Sequence[Path]) -> list[str]:
    """Return a sentence for each link in `files` that leads nowhere, or out of `root`, with file and line."""
    return [
        f"{file.relative_to(root)}:{link.line}: {link.target}: {wrong}"
        for file in files
        for link in links_of(file.read_text(encoding="utf-8"))
        if (wrong := _wrong(root, file, link.target))
    ]


def _wrong(root: Path, file: Path, target: str) -> str:
    if re.match(r"[a-z][a-z0-9+.-]*:|//", target, re.IGNORECASE):
        return _malformed(target)
    path, _, anchor = target.partition("#")
    found = (file.parent / unquote(path)).resolve() if path else file.resolve()
    if not found.is_relative_to(root.resolve()):
        return "leads out of the repository"
    if not found.exists():
        return "there is no such file"
    if anchor and (found.suffix != ".md" or unquote(anchor) not in anchors_of(found.read_text(encoding="utf-8"))):
        return "there is no such heading"
    return ""


def _malformed(address: str) -> str:
    """Say what is wrong with an address outside, or nothing; no server is asked."""
    parts = urlsplit(address)
    if parts.scheme not in ("http", "https"):
        return "neither http nor https"
    return "" if HOST.fullmatch(parts.hostname or "") else "no name of a host"


def _parser() -> MarkdownIt:
    return MarkdownIt("commonmark").enable("table")


def _line(token: Token) -> int:
    return token.map[0] + 1 if token.map else 0


def _plain(inline: Token) -> str:
    return "".join(part.content for part in inline.children or () if part.type in ("text", "code_inline"))
