from pathlib import Path

import pytest

from tests.site.page_links import problems


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """Two pages, a style and a picture."""
    (tmp_path / "sub").mkdir()
    (tmp_path / "style.css").write_text("body { background: url(p.png) }")
    (tmp_path / "p.png").touch()
    (tmp_path / "sub" / "b.html").write_text('<a href="../a.html#here">x</a><img src="../p.png">')
    write(tmp_path, "")
    return tmp_path


def write(site: Path, more: str) -> None:
    """The first page, with something added."""
    (site / "a.html").write_text(f'<link rel="stylesheet" href="style.css"><h1 id="here">A</h1>{more}')


@pytest.mark.parametrize(
    ("planted", "address", "wrong"),
    [
        ('<a href="sub/c.html">x</a>', "sub/c.html", "there is no such file"),
        ('<a href="../outside.html">x</a>', "../outside.html", "there is no such file"),
        ('<a href="sub/">x</a>', "sub/", "there is no such file"),
        ('<a href="#there">x</a>', "#there", "there is no such place"),
        ('<a href="sub/b.html#there">x</a>', "sub/b.html#there", "there is no such place"),
        ('<img src="q.png">', "q.png", "there is no such file"),
        (
            '<script src="https://cdn.example.org/x.js"></script>',
            "https://cdn.example.org/x.js",
            "is fetched from elsewhere",
        ),
        ('<link rel="stylesheet" href="//fonts.example.org/f">', "//fonts.example.org/f", "is fetched from elsewhere"),
    ],
)
def test_each_kind_of_wrong_link_is_named(site: Path, planted: str, address: str, wrong: str) -> None:
    """With the page, the address and the reason."""
    write(site, planted)

    assert problems(site) == [f"a.html: {address}: {wrong}"]
