from pathlib import Path

import pytest

from tests.site.build import fetched, markdown_problems
from tests.site.markdown_links import problems
from tests.site.nav import read

ROOT = Path(__file__).parents[3]


def test_every_page_of_this_repository_has_a_place() -> None:
    """A new page in docs wants a line in docs/nav.yaml. Every link leads to a file or a heading."""
    assert "docs/operations.md" in read(ROOT)["Operations"]
    assert markdown_problems(ROOT) == []


@pytest.mark.parametrize(
    ("link", "wrong"),
    [
        ("[a](other.md#d--p-or-kv_verify)", ""),
        ("`[code](no.md)`", ""),
        ("[a](missing.md)", "missing.md: there is no such file"),
        ("| [a](other.md#nothing) |\n|---|", "other.md#nothing: there is no such heading"),
        ("![a](../outside.md)", "../outside.md: leads out of the repository"),
        ("<https://nowhere>", "https://nowhere: no name of a host"),
    ],
)
def test_each_kind_of_wrong_link_is_named(tmp_path: Path, link: str, wrong: str) -> None:
    """Wherever it stands, with file, line and reason; a right one is not mentioned."""
    root = tmp_path / "repository"
    root.mkdir()
    (root / "page.md").write_text(f"# This\n\n{link}\n")
    (root / "other.md").write_text("# D → P, or `kv_verify`\n")
    (tmp_path / "outside.md").touch()

    assert problems(root, [root / "page.md"]) == ([f"page.md:3: {wrong}"] if wrong else [])


def test_what_a_browser_would_fetch_from_elsewhere_is_named(tmp_path: Path) -> None:
    """Links are for the reader to follow, or not."""
    page = tmp_path / "a.html"
    page.write_text('<link rel="canonical" href="https://e.org/"><img src="p.png"><a href="https://e.org">x</a>')
    assert fetched(tmp_path) == []

    page.write_text('<script src="https://e.org/x.js"></script><style>p { background: url("//e.org/p.png") }</style>')
    assert len(fetched(tmp_path)) == 2
