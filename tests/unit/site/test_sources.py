import pytest

from tests.site.sources import POINTER, QUICK_START_SECTIONS, split, translated

README = "# B\n\nIntro.\n\n## First\n\n1\n\n" + "".join(f"## {title}\n\nabout it\n\n" for title in QUICK_START_SECTIONS)


def test_the_quick_start_is_cut_out_of_the_readme() -> None:
    """Each section stands on one of the two pages, in the order in which it was written; one line leads from here to there."""
    rest, quick_start = split(README + "## Last\n\n2\n")

    assert rest == f"# B\n\nIntro.\n\n## First\n\n1\n\n{POINTER}## Last\n\n2\n"
    assert quick_start.startswith("# Quick start\n\n## Try it on a laptop\n")
    assert quick_start.count("about it") == len(QUICK_START_SECTIONS)


def test_a_section_that_is_gone_is_named() -> None:
    """Whoever renames it in README.md is told where it is used."""
    with pytest.raises(ValueError, match=r"README.md has no section 'Settings' \(tests/site/sources.py\)"):
        split(README.replace("## Settings", "## Options"))


def test_links_into_the_quick_start_follow_it() -> None:
    """Others stay as they are."""
    text = "[a](../README.md#settings) [b](../README.md#first)"

    assert translated(text) == "[a](../quick-start.md#settings) [b](../README.md#first)"
