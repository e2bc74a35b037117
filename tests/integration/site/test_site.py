import shutil
from pathlib import Path

import pytest

from tests.site.build import build, markdown_problems
from tests.site.nav import markdown_files
from tests.site.page_links import problems
from tests.site.sources import QUICK_START_SECTIONS

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site of this repository, without anything wrong with it."""
    out = tmp_path_factory.mktemp("site") / "html"
    assert build(ROOT, out) == []
    return out


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_site_builds_and_every_link_of_it_leads_somewhere(site: Path) -> None:
    """Without a warning; each page of the repository is there, and nothing is fetched from elsewhere."""
    for file in markdown_files(ROOT):
        assert (site / file.relative_to(ROOT)).with_suffix(".html").is_file()
    assert (site / "index.html").is_file()
    assert (site / "quick-start.html").is_file()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_search_finds_pages_without_a_server(site: Path) -> None:
    """Its index is a script, which a browser loads from a disk too."""
    index = (site / "searchindex.js").read_text(encoding="utf-8")

    assert index.startswith("Search.setIndex(")
    assert "docs/operations" in index


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_an_id_that_is_lost_from_a_built_page_is_named(site: Path, tmp_path: Path) -> None:
    """The check of the HTML does not rely on what Sphinx says."""
    copy = tmp_path / "site"
    shutil.copytree(site, copy)
    page = copy / "docs" / "operations.html"
    page.write_text(page.read_text(encoding="utf-8").replace('id="several-workers"', ""), encoding="utf-8")

    assert "docs/operations.html: #several-workers: there is no such place" in problems(copy)


def test_wrong_links_in_a_copy_of_the_repository_are_named(tmp_path: Path) -> None:
    """A file, a heading and an address, in README.md and in docs, each with its line; nothing else is wrong."""
    for file in [*markdown_files(ROOT), *(ROOT / "docs").rglob("*.*"), ROOT / "LICENSE"]:
        target = tmp_path / file.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, target)
    for page, link in (
        ("README.md", "docs/opertions.md"),
        ("docs/security.md", "operations.md#workers"),
        ("CHANGELOG.md", "https://x"),
    ):
        with (tmp_path / page).open("a", encoding="utf-8") as text:
            text.write(f"\n\n[planted]({link})\n")

    found = markdown_problems(tmp_path)

    assert sorted(line.split(":", 2)[0] + line.split(":", 2)[2] for line in found) == [
        "CHANGELOG.md https://x: no name of a host",
        "README.md docs/opertions.md: there is no such file",
        "docs/security.md operations.md#workers: there is no such heading",
    ]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_what_sphinx_warns_of_is_an_error(tmp_path: Path) -> None:
    """A small site whose only fault is one that Sphinx alone sees: a heading of a level that nothing leads to."""
    docs = tmp_path / "docs"
    docs.mkdir()
    (tmp_path / "README.md").write_text("# B\n\n" + "".join(f"## {title}\n\n" for title in QUICK_START_SECTIONS))
    (docs / "a.md").write_text("# A\n\n#### Deep\n")
    (docs / "nav.yaml").write_text("One: [quick-start.md, docs/a.md]\n")

    (found,) = build(tmp_path, tmp_path / "out")

    assert "docs/a.md:3: WARNING" in found
