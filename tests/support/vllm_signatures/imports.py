"""Which names of vLLM our own code imports when it runs."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from tests.support.vllm_signatures.used import FILES, ROOT


class Imported(NamedTuple):
    """One name, and whether its absence is provided for."""

    module: str
    name: str
    file: str
    is_guarded: bool  # within `try … except ImportError` or `with suppress(ImportError)`

    @property
    def key(self) -> str:
        return f"{self.module}.{self.name}"


@cache
def imports() -> list[Imported]:
    """Every import of vLLM in the rooms that run beside it, but those for type checkers."""
    return [found for file in FILES for found in _of(ast.parse(file.read_text()).body, file, guarded=False)]


def _of(body: list[ast.stmt], file: Path, *, guarded: bool) -> Iterator[Imported]:
    for statement in body:
        match statement:
            case ast.ImportFrom(module=str(module)) if module.partition(".")[0] == "vllm":
                for alias in statement.names:
                    yield Imported(module, alias.name, str(file.relative_to(ROOT)), guarded)
            case ast.Import() if any(alias.name.partition(".")[0] == "vllm" for alias in statement.names):
                raise AssertionError(f"{file}:{statement.lineno}: write `from vllm… import …`")
            case ast.If(test=ast.Name(id="TYPE_CHECKING")):
                yield from _of(statement.orelse, file, guarded=guarded)
            case ast.Try():
                yield from _of(statement.body, file, guarded=guarded or "ImportError" in _caught(statement))
                yield from _of(_inner(statement, skip="body"), file, guarded=guarded)
            case ast.With():
                suppressed = "ImportError" in ast.unparse(
                    ast.Tuple(elts=[item.context_expr for item in statement.items])
                )
                yield from _of(statement.body, file, guarded=guarded or suppressed)
            case _:
                yield from _of(_inner(statement), file, guarded=guarded)


def _caught(statement: ast.Try) -> str:
    return " ".join(ast.unparse(handler.type) for handler in statement.handlers if handler.type)


def _inner(statement: ast.AST, *, skip: str = "") -> list[ast.stmt]:
    found: list[ast.stmt] = []
    for name, value in ast.iter_fields(statement):
        if name != skip and isinstance(value, list):
            for item in value:
                if isinstance(item, ast.stmt):
                    found.append(item)
                elif isinstance(item, ast.excepthandler | ast.match_case):
                    found += _inner(item)
    return found
