import ast
import re
from pathlib import Path

import pytest

from baton.deploy.doctor.catalogue import CATALOGUE, table
from baton.deploy.doctor.fit import DIFFERENCES

ROOT = Path(__file__).resolve().parents[4]
ROOM = ROOT / "deploy" / "doctor"
PAGE = ROOT / "docs" / "doctor.md"


def codes_in_code() -> set[str]:
    """Every finding that the code makes, by the literals that it is made with."""
    found: set[str] = set()
    for file in ROOM.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and file.name != "catalogue.py":
                found.add(node.value)
    return found & set(CATALOGUE) | set(DIFFERENCES.values())


def test_every_kind_of_finding_is_made_somewhere() -> None:
    """What no check can find does not stand in the catalogue."""
    assert codes_in_code() == set(CATALOGUE)


def test_the_page_has_the_catalogue_as_it_is() -> None:
    """`python -m baton.deploy.doctor.catalogue` prints what stands in docs/doctor.md."""
    assert table() in PAGE.read_text()


@pytest.mark.parametrize("code", CATALOGUE)
def test_meaning_and_fix_are_sentences_on_one_line(code: str) -> None:
    """A table cell and a line of the report hold them."""
    for text in (CATALOGUE[code].meaning, CATALOGUE[code].fix):
        assert text.endswith((".", ".)"))
        assert "\n" not in text
        assert "|" not in text


def test_the_incidents_name_findings_and_series_that_exist() -> None:
    """Third column of docs/troubleshooting.md."""
    page, series = ((ROOT / "docs" / name).read_text() for name in ("troubleshooting.md", "metrics.md"))
    cells = [line.split(" | ")[2] for line in page.splitlines() if line.startswith("| ") and line.count(" | ") == 3]
    words = set(re.findall(r"`([^`]+)`", " ".join(cells)))
    findings = {word for word in words if re.fullmatch(r"[a-z]+(-[a-z]+)*", word)}

    assert len(cells) > 30
    assert findings - {"incarnation"} <= set(CATALOGUE)
    assert {name for word in words for name in re.findall(r"baton_\w+", word) if name not in series} == set()
