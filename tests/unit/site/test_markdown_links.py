from pathlib import Path

import pytest

from tests.site.markdown_links import anchors_of, links_of, problems, slug_of


def test_links_are_found_wherever_they_stand() -> None:
    """In paragraphs, tables, pictures, references and angle brackets, but not in code."""
    text = (
        "See [a](a.md) and\n![p](p.png).\n\n| x |\n|---|\n| [b](b.md#c) |\n\n<https://e.org> [r]\n\n"
        "`[no](no.md)`\n\n```\n[no](no.md)\n```\n\n[r]: r.md\n"
    )

    assert [link.target for link in links_of(text)] == ["a.md", "p.png", "b.md#c", "https://e.org", "r.md"]


@pytest.mark.parametrize(
    ("title", "slug"),
    [
        ("Several workers", "several-workers"),
        ("`GET /metrics` on the proxy: failover", "get-metrics-on-the-proxy-failover"),
        ("What ran, and what did not", "what-ran-and-what-did-not"),
        ("D → P – or not", "d--p--or-not"),
        ("kv_verify", "kv_verify"),
    ],
)
def test_anchors_are_spelt_as_code_hosts_do(title: str, slug: str) -> None:
    """Lower case, no punctuation, a hyphen for each blank."""
    assert slug_of(title.replace("`", "")) == slug
    assert anchors_of(f"# {title}\n") == {slug}


@pytest.mark.parametrize(
    ("target", "wrong"),
    [
        ("other.md", ""),
        ("other.md#part", ""),
        ("#this", ""),
        ("folder", ""),
        ("https://example.org/a?b=c#d", ""),
        ("missing.md", "there is no such file"),
        ("other.md#nothing", "there is no such heading"),
        ("#nothing", "there is no such heading"),
        ("../../outside.md", "leads out of the repository"),
        ("https://nowhere", "no name of a host"),
        ("ftp://example.org", "neither http nor https"),
    ],
)
def test_each_kind_of_wrong_link_is_named(tmp_path: Path, target: str, wrong: str) -> None:
    """With file, line and reason; a right one is not mentioned."""
    root = tmp_path / "repository"
    (root / "folder").mkdir(parents=True)
    page = root / "page.md"
    page.write_text(f"# This\n\n[link]({target})\n")
    (root / "other.md").write_text("# Other\n\n## Part\n")
    (tmp_path / "outside.md").touch()

    assert problems(root, [page]) == ([f"page.md:3: {target}: {wrong}"] if wrong else [])
