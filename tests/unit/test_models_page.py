"""`docs/models.md`: every sentence that it quotes is one that Baton says, to the letter."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("kv_connector", "node", "proxy")
QUOTED = re.compile(r"(?<!\*)\*([^*\n]{12,})\*(?!\*)")  # not one word, which is a term
FILLED_IN = re.compile(r"'[^']*'|…|\d+")


@cache
def literals() -> str:
    """All texts in the code of those rooms; of an f-string the parts between what is filled in."""
    found = []
    for room in ROOMS:
        for file in sorted((ROOT / room).rglob("*.py")):
            nodes = ast.walk(ast.parse(file.read_text(encoding="utf-8")))
            found += [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    return "\n".join(found)


def quoted() -> list[str]:
    return QUOTED.findall((ROOT / "docs" / "models.md").read_text(encoding="utf-8"))


def test_the_page_quotes_something() -> None:
    """Else the next test would say nothing."""
    assert len(quoted()) >= 8


@pytest.mark.parametrize("sentence", quoted())
def test_a_quoted_sentence_is_said(sentence: str) -> None:
    """What is filled in may be any value."""
    assert [part for part in map(str.strip, FILLED_IN.split(sentence)) if part not in literals()] == []
