"""A page, taken apart."""

import xml.etree.ElementTree as ET


def body_of(text: str) -> ET.Element:
    """Return what a page shows; it is well-formed XML."""
    return ET.fromstring("<main>" + text.partition("<main>")[2].partition("</main>")[0] + "</main>")  # noqa: S314  # our own


def assert_is_sound(text: str) -> None:
    """Nothing is fetched from anywhere, and each drawing can be read aloud; test_page.py looks at it in a browser."""
    assert not [word for word in ("<script", "src=", "href=", "url(", "@import") if word in text]
    body = body_of(text)
    ids = [each.attrib["id"] for each in body.iter() if "id" in each.attrib]
    assert len(ids) == len(set(ids))
    for drawing in body.iter("svg"):
        if drawing.get("aria-hidden") != "true":  # swatches say nothing
            assert (drawing.get("role"), [each.tag for each in drawing[:2]]) == ("img", ["title", "desc"])
            assert set((drawing.get("aria-labelledby") or "").split()) <= set(ids)
            assert drawing[0].text
