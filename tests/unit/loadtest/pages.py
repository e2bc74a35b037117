"""A page, taken apart."""

import xml.etree.ElementTree as ET
from html.parser import HTMLParser

VOID = {"meta", "br", "link", "img", "input", "hr"}


class Page(HTMLParser):
    """Checks nesting, and keeps tags, attributes and text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def assert_needs_nothing_else(text: str) -> None:
    """Well-formed, and without a script, style sheet, picture or font from anywhere."""
    page = Page(text)
    assert page.open == []
    assert not {tag for tag, _ in page.tags} & {"script", "link", "img", "iframe", "object", "embed", "use", "image"}
    assert not any({"src", "href", "xlink:href", "srcset"} & set(attrs) for _, attrs in page.tags)
    assert not any(word in text for word in ("url(", "@import", "javascript:"))


def pictures_of(text: str) -> list[str]:
    """Every drawing, those in keys included."""
    return ["<svg" + part.partition("</svg>")[0] + "</svg>" for part in text.split("<svg")[1:]]


def assert_pictures_are_sound(text: str) -> None:
    """Each has a name and a description, which screen readers read; ids are unique on the page."""
    pictures = [picture for picture in pictures_of(text) if 'aria-hidden="true"' not in picture]  # swatches say nothing
    ids = [attrs["id"] for _, attrs in Page(text).tags if "id" in attrs]
    assert len(ids) == len(set(ids))
    for picture in pictures:
        root = ET.fromstring(picture)  # noqa: S314  # our own
        assert root.get("role") == "img"
        assert set((root.get("aria-labelledby") or "").split()) <= set(ids)
        assert root[0].tag == "title"
        assert root[0].text
        assert root[1].tag == "desc"
        assert "nan" not in picture
