import ast
import re
from pathlib import Path

from baton.deploy.doctor.catalogue import CATALOGUE, table
from baton.deploy.doctor.fit import DIFFERENCES

ROOT = Path(__file__).resolve().parents[4]


def test_the_catalogue_has_every_kind_of_finding_and_the_page_has_the_catalogue() -> None:
    """What no check makes does not stand there. `python -m baton.deploy.doctor.catalogue` prints what is in docs/doctor.md."""
    files = [file for file in (ROOT / "deploy" / "doctor").glob("*.py") if file.name != "catalogue.py"]
    nodes = [node for file in files for node in ast.walk(ast.parse(file.read_text()))]
    literals = {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}

    assert set(DIFFERENCES.values()) <= set(CATALOGUE) <= literals
    assert table() in (ROOT / "docs" / "doctor.md").read_text()


def test_meaning_and_fix_are_sentences_on_one_line() -> None:
    """A table cell and a line of the report hold them."""
    texts = [text for entry in CATALOGUE.values() for text in (entry.meaning, entry.fix)]

    assert [text for text in texts if not re.fullmatch(r"[^|\n]*\.\)?", text)] == []


def test_the_incidents_name_findings_and_series_that_exist() -> None:
    """Third column of docs/troubleshooting.md."""
    page, series = ((ROOT / "docs" / name).read_text() for name in ("troubleshooting.md", "metrics.md"))
    cells = [line.split(" | ")[2] for line in page.splitlines() if line.startswith("| ") and line.count(" | ") == 3]
    words = set(re.findall(r"`([^`]+)`", " ".join(cells)))
    findings = {word for word in words if re.fullmatch(r"[a-z]+(-[a-z]+)*", word)}

    assert len(cells) > 30
    assert findings - {"incarnation"} <= set(CATALOGUE)
    assert {name for word in words for name in re.findall(r"baton_\w+", word) if name not in series} == set()
