"""The site as Sphinx builds it; that the pages' own links lead somewhere is looked at on every run, in `unit/site/test_nav.py`."""

from pathlib import Path

import pytest

from tests.site.build import build
from tests.site.nav import markdown_files
from tests.site.sources import QUICK_START_SECTIONS

pytestmark = [pytest.mark.exhaustive, pytest.mark.slow, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[3]


def test_the_site_builds_and_every_link_of_it_leads_somewhere(tmp_path: Path) -> None:
    """Without a warning; each page of the repository is there, nothing is fetched from elsewhere, and a search needs no server."""
    site = tmp_path / "html"

    assert build(ROOT, site) == []

    for file in markdown_files(ROOT):
        assert (site / file.relative_to(ROOT)).with_suffix(".html").is_file()
    assert (site / "index.html").is_file()
    assert (site / "quick-start.html").is_file()
    index = (site / "searchindex.js").read_text(encoding="utf-8")
    assert index.startswith("Search.setIndex(")  # a script, which a browser loads from a disk too
    assert "docs/operations" in index


def test_what_sphinx_warns_of_is_an_error(tmp_path: Path) -> None:
    """A small site whose only fault is one that Sphinx alone sees: a heading of a level that nothing leads to."""
    docs = tmp_path / "docs"
    docs.mkdir()
    (tmp_path / "README.md").write_text("# B\n\n" + "".join(f"## {title}\n\n" for title in QUICK_START_SECTIONS))
    (docs / "a.md").write_text("# A\n\n#### Deep\n")
    (docs / "nav.yaml").write_text("One: [quick-start.md, docs/a.md]\n")

    (found,) = build(tmp_path, tmp_path / "out")

    assert "docs/a.md:3: WARNING" in found
