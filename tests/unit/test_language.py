"""Comments, tests and documents name their subject: words that never do are not used."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("contracts", "proxy", "kv_connector", "model_runner", "node", "deploy", "loadtest", "benchmarks", "tests")
VAGUE = re.compile(r"\b(whoever|somebody|someone|meanwhile|anew)\b", re.IGNORECASE)


def test_sentences_name_their_subject() -> None:
    """A reader should not have to ask who, or when."""
    texts = [
        path for room in ROOMS for kind in ("*.py", "*.js", "*.yaml", "*.sh") for path in (ROOT / room).rglob(kind)
    ]
    texts += [*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md")]
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in texts
        if path.name not in ("CHANGELOG.md", Path(__file__).name)
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if VAGUE.search(line)
    ]

    assert len(texts) > 1200
    assert found == []
