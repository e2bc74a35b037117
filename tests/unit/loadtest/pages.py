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
        self.handle_startendtag(tag, attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def assert_is_sound(text: str) -> None:
    """Well-formed, and without a script, style sheet, picture or font from anywhere; each drawing can be read aloud."""
    page = Page(text)
    assert page.open == []
    assert not {tag for tag, _ in page.tags} & {"script", "link", "img", "iframe", "object", "embed", "use", "image"}
    assert not any({"src", "href", "xlink:href", "srcset"} & set(attrs) for _, attrs in page.tags)
    assert not any(word in text for word in ("url(", "@import", "javascript:"))
    ids = [attrs["id"] for _, attrs in page.tags if "id" in attrs]
    assert len(ids) == len(set(ids))
    for part in text.split("<svg")[1:]:
        if 'aria-hidden="true"' not in part.partition(">")[0]:  # swatches say nothing
            root = ET.fromstring("<svg" + part.partition("</svg>")[0] + "</svg>")  # noqa: S314  # our own
            assert (root.get("role"), [each.tag for each in root[:2]]) == ("img", ["title", "desc"])
            assert set((root.get("aria-labelledby") or "").split()) <= set(ids)
            assert root[0].text
