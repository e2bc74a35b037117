"""Puts a run's tables into a page, between the marks that stand there for each part. Pure."""

import re


class MarkError(Exception):
    """The page has no place for that part."""


def put(page: str, part: str, text: str) -> str:
    """Return the page with the text between the marks of a part, in place of what stood there.

    Raises:
        MarkError: the page has no such marks, or several.
    """
    begin, end = f"<!-- chaos: {part} -->\n", f"<!-- end of {part} -->"
    places = re.findall(re.escape(begin) + ".*?" + re.escape(end), page, flags=re.DOTALL)
    if len(places) != 1:
        raise MarkError(f"{len(places)} places for {part} in the page, not one")
    return page.replace(places[0], f"{begin}\n{text}\n\n{end}")
