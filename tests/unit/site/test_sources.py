from pathlib import Path

import pytest

from tests.site.sources import POINTER, QUICK_START_SECTIONS, label, navigation, split, translated, write

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


def test_a_folder_has_its_pages_below_its_own() -> None:
    """The first page's navigation names the folder alone."""
    nav = {"One": ["docs/a.md", "docs/more/README.md", "docs/more/1.md"]}

    shown = navigation(nav, {"docs/a.md": "A", "docs/more/README.md": "More", "docs/more/1.md": "1"})

    assert shown.split("\n")[1:-1] == [
        "```{toctree}",
        ":hidden:",
        ":caption: One",
        "",
        "A </docs/a.md>",
        "More </docs/more/README.md>",
        "```",
    ]


@pytest.mark.parametrize(
    ("title", "shown"),
    [
        ("# Sizing: how many nodes", "Sizing"),
        ("# `baton doctor`", "baton doctor"),
        ("# 19. `make bench`: Baton beside others", "19. make bench"),
    ],
)
def test_the_sidebar_is_short(title: str, shown: str) -> None:
    """What follows a colon is for the page itself."""
    assert label(f"{title}\n\nText: more.\n") == shown


def test_pages_keep_their_places(tmp_path: Path) -> None:
    """So links between them hold; pictures and data come along."""
    root, out = tmp_path / "root", tmp_path / "out"
    (root / "docs" / "more").mkdir(parents=True)
    (root / "README.md").write_text(README)
    (root / "docs" / "more" / "README.md").write_text("# More\n")
    (root / "docs" / "more" / "1.md").write_text("# One\n")
    (root / "docs" / "more" / "p.svg").write_text("<svg/>")

    write(root, out, {"One": ["quick-start.md", "docs/more/README.md", "docs/more/1.md"]})

    assert (out / "docs" / "more" / "1.md").read_text() == "# One\n"
    assert (out / "docs" / "more" / "p.svg").exists()
    assert "One </docs/more/1.md>" in (out / "docs" / "more" / "README.md").read_text()
    assert "about it" not in (out / "README.md").read_text()
