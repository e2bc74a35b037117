"""`docs/models.md`: every sentence that it quotes is one that Baton says, to the letter, and some test reads it."""

import ast
import re
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("kv_connector", "node", "proxy")
TESTS = ("tests/unit", "tests/integration")
QUOTED = re.compile(r"(?<!\*)\*([^*\n]{12,})\*(?!\*)")  # not one word, which is a term
HELD = 16  # letters of a message in a row that a test has to name
FILLED_IN = re.compile(r"'[^']*'|…|\d+")


def nodes(folders: Sequence[str]) -> Iterator[ast.AST]:
    for folder in folders:
        for file in sorted((ROOT / folder).rglob("*.py")):
            if file != Path(__file__):
                yield from ast.walk(ast.parse(file.read_text(encoding="utf-8")))


def texts(folders: Sequence[str]) -> list[str]:
    """All texts in the code; of an f-string the parts between what is filled in."""
    found = nodes(folders)
    return [node.value for node in found if isinstance(node, ast.Constant) and isinstance(node.value, str)]


@cache
def literals() -> str:
    return "\n".join(texts(ROOMS))


@cache
def read_by_tests() -> str:
    """All texts of tests, patterns without their backslashes, and those of the constants that they name."""
    named = {
        node.attr if isinstance(node, ast.Attribute) else node.id
        for node in nodes(TESTS)
        if isinstance(node, ast.Attribute | ast.Name)
    }
    found = [
        str(node.value.value)
        for node in nodes(ROOMS)
        if isinstance(node, ast.AnnAssign | ast.Assign) and isinstance(node.value, ast.Constant)
        for target in ([node.target] if isinstance(node, ast.AnnAssign) else node.targets)
        if isinstance(target, ast.Name) and target.id in named
    ]
    return "\n".join([*texts(TESTS), *found]).replace("\\", "")


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
