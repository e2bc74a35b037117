from pathlib import Path

import pytest

from tests.site.build import fetched, markdown_problems
from tests.site.nav import NavError, read

ROOT = Path(__file__).parents[3]
PAGES = ("README.md", "CHANGELOG.md", "docs/a.md", "docs/more/README.md", "docs/more/1.md", "docs/more/2.md")


def repository(root: Path, nav: str) -> Path:
    """Some pages and a navigation."""
    for page in PAGES:
        file = root / page
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("# T\n")
    (root / "docs" / "nav.yaml").write_text(nav)
    return root


@pytest.mark.parametrize(
    ("nav", "wrong"),
    [
        ("One: [docs/more/]\n", "docs/nav.yaml has no place for docs/a.md"),
        ("One: [docs/a.md, docs/more/, docs/a.md]\n", "docs/nav.yaml names docs/a.md twice"),
        ("One: [docs/a.md, docs/b.md, docs/more/]\n", "docs/nav.yaml names docs/b.md, which is not there"),
    ],
)
def test_each_difference_is_named(tmp_path: Path, nav: str, wrong: str) -> None:
    """A page without a place would be found by search alone."""
    with pytest.raises(NavError, match=f"^{wrong}$"):
        read(repository(tmp_path, nav))


def test_every_page_of_this_repository_has_a_place() -> None:
    """A new page in docs wants a line in docs/nav.yaml."""
    assert "docs/operations.md" in read(ROOT)["Operations"]


def test_every_link_of_this_repositorys_pages_leads_somewhere() -> None:
    """Files and headings."""
    assert markdown_problems(ROOT) == []


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ('<script src="https://cdn.example.org/x.js"></script>', True),
        ('<link rel="stylesheet" href="//fonts.example.org/f">', True),
        ('<style>p { background: url("https://example.org/p.png") }</style>', True),
        (
            '<link rel="canonical" href="https://example.org/"><img src="p.png"><a href="https://example.org">x</a>',
            False,
        ),
    ],
)
def test_what_a_browser_would_fetch_from_elsewhere_is_named(text: str, wrong: bool, tmp_path: Path) -> None:
    """Links are for the reader to follow, or not."""
    (tmp_path / "a.html").write_text(text)

    assert bool(fetched(tmp_path)) is wrong
