"""A page that tables are put into."""

import pytest

from tests.chaos.page import MarkError, put

PAGE = (
    "# A\n\n<!-- chaos: kills -->\nold\n<!-- end of kills -->\n\nrest <!-- chaos: stalls -->\n<!-- end of stalls -->\n"
)


def test_a_part_replaces_what_stood_in_its_place() -> None:
    r"""All else stays as it is; a text with backslashes too is put in as it is."""
    page = put(PAGE, "kills", r"new \1")

    assert page == PAGE.replace("old\n", "\nnew \\1\n\n")
    assert put(page, "kills", "newer") == PAGE.replace("old\n", "\nnewer\n\n")


@pytest.mark.parametrize("page", ["", PAGE + PAGE])
def test_a_page_without_a_place_is_refused(page: str) -> None:
    """Nothing is guessed."""
    with pytest.raises(MarkError, match="places for kills"):
        put(page, "kills", "new")
