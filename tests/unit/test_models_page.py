"""`docs/models.md`: every sentence that it quotes is one that Baton says, to the letter, and some test reads it."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("kv_connector", "node", "proxy")
TESTS = ("tests/unit", "tests/integration")
QUOTED = re.compile(r"(?<!\*)\*([^*\n]{12,})\*(?!\*)")  # not one word, which is a term
HELD = 16  # letters of a message in a row that a test has to name
FILLED_IN = re.compile(r"'[^']*'|…|\d+")


@cache
def code() -> list[ast.AST]:
    files = [file for folder in ROOMS for file in sorted((ROOT / folder).rglob("*.py"))]
    return [node for file in files for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))]


@cache
def literals() -> str:
    """All texts in the code; of an f-string the parts between what is filled in."""
    return "\n".join(node.value for node in code() if isinstance(node, ast.Constant) and isinstance(node.value, str))


@cache
def read_by_tests() -> str:
    """The tests without comments and without the backslashes of patterns, and the texts of constants that they name."""
    files = [file for folder in TESTS for file in (ROOT / folder).rglob("*.py") if file != Path(__file__)]
    tests = re.sub(r"(?m)^\s*#.*|  # .*", "", "\n".join(file.read_text(encoding="utf-8") for file in files))
    named = set(re.findall(r"\b[A-Z][A-Z_]+\b", tests))
    found = [
        str(node.value.value)
        for node in code()
        if isinstance(node, ast.AnnAssign | ast.Assign) and isinstance(node.value, ast.Constant)
        for target in ([node.target] if isinstance(node, ast.AnnAssign) else node.targets)
        if isinstance(target, ast.Name) and target.id in named
    ]
    return "\n".join([tests.replace("\\", ""), *found])


def quoted() -> list[str]:
    return QUOTED.findall((ROOT / "docs" / "models.md").read_text(encoding="utf-8"))


def test_the_page_quotes_something() -> None:
    """Else the next test would say nothing."""
    assert len(quoted()) >= 8


@pytest.mark.parametrize("sentence", quoted())
def test_a_quoted_sentence_is_said(sentence: str) -> None:
    """What is filled in may be any value."""
    assert [part for part in map(str.strip, FILLED_IN.split(sentence)) if part not in literals()] == []


@pytest.mark.parametrize("sentence", quoted())
def test_a_quoted_sentence_is_read_by_a_test(sentence: str) -> None:
    """By its words, or by the name of the constant that holds it."""
    parts = [part for part in map(str.strip, FILLED_IN.split(sentence)) if len(part) >= HELD]

    assert parts
    assert any(part[at : at + HELD] in read_by_tests() for part in parts for at in range(len(part) - HELD + 1))
