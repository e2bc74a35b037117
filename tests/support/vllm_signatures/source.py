"""Looks names up in a package's source, without importing anything of it."""

import ast
from collections.abc import Iterator
from functools import cache, cached_property, lru_cache
from pathlib import Path
from typing import NamedTuple

Function = ast.FunctionDef | ast.AsyncFunctionDef
Found = Function | ast.ClassDef | ast.stmt | str  # a module's name, as text


class Member(NamedTuple):
    """A name of a class, and where it is defined."""

    module: "Module"
    owner: ast.ClassDef
    node: ast.AST
    method: Function | None  # that assigns it, if it is an attribute of `self`


class Source:
    """Python packages below some folders."""

    def __init__(self, *roots: Path) -> None:
        self._roots = roots
        self.module = lru_cache(maxsize=None)(self._module)
        self.file = lru_cache(maxsize=None)(self._file)

    def _file(self, module: str) -> Path | None:
        paths = [root.joinpath(*module.split(".")) for root in self._roots]
        files = [file for path in paths for file in (path.with_suffix(".py"), path / "__init__.py")]
        return next((file for file in files if file.exists()), None)

    def _module(self, name: str) -> "Module | None":
        file = self.file(name)
        return Module(self, name, file) if file else None

    def find(self, module: str, name: str) -> Found | None:
        """What `from module import name` would give, followed to where it is defined; None if it is not there."""
        found = self.module(module)
        return found.find(name) if found else None

    def member(self, module: str, class_name: str, member: str) -> Function | ast.AST | None:
        """A method, field or attribute of a class, its own or inherited."""
        found = self.module(module)
        at = found.member(class_name, member) if found else None
        return at.node if at else None


class Module:
    def __init__(self, source: Source, name: str, file: Path) -> None:
        self._source = source
        self.name = name
        self.file = file
        self._is_package = file.name == "__init__.py"
        self.tree = ast.parse(file.read_text())

    @cached_property
    def top(self) -> dict[str, ast.stmt]:
        """What the module defines or imports, by name; of several the first."""
        found: dict[str, ast.stmt] = {}
        for statement in _flat(self.tree.body):
            for name in _names(statement):
                found.setdefault(name, statement)
        return found

    def find(self, name: str) -> Found | None:
        statement = self.top.get(name)
        if isinstance(statement, ast.ImportFrom):
            origin = self._origin(statement)
            real = next(alias.name for alias in statement.names if (alias.asname or alias.name) == name)
            if origin.partition(".")[0] != self.name.partition(".")[0]:
                return statement  # another package's
            return self._source.find(origin, real)
        if statement is not None:
            return statement
        inner = f"{self.name}.{name}"
        return inner if self._source.file(inner) else None

    def _origin(self, statement: ast.ImportFrom) -> str:
        if not statement.level:
            return statement.module or ""
        parts = self.name.split(".")
        kept = parts[: len(parts) - statement.level + self._is_package]
        return ".".join([*kept, *([statement.module] if statement.module else [])])

    def home_of(self, name: str) -> "tuple[Module, ast.ClassDef] | None":
        """The module that defines a class of that name, and the class."""
        statement = self.top.get(name) or self.inner_imports.get(name)
        if isinstance(statement, ast.ClassDef):
            return self, statement
        if isinstance(statement, ast.ImportFrom):
            origin = self._source.module(self._origin(statement))
            real = next(alias.name for alias in statement.names if (alias.asname or alias.name) == name)
            return origin.home_of(real) if origin else None
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.value, ast.IfExp):
            chosen = statement.value.body  # a class, or where it is not there another one
            return self.home_of(chosen.id) if isinstance(chosen, ast.Name) else None
        return None

    @cached_property
    def inner_imports(self) -> dict[str, ast.ImportFrom]:
        found = (node for node in ast.walk(self.tree) if isinstance(node, ast.ImportFrom))
        return {alias.asname or alias.name: node for node in found for alias in node.names}

    def origin_of(self, name: str) -> "Module | None":
        """The module that a name is imported from, under the same name."""
        statement = self.top.get(name)
        return self._source.module(self._origin(statement)) if isinstance(statement, ast.ImportFrom) else None

    def module_named(self, name: str) -> str | None:
        """The full name of a module that is imported under a name; None if that is none."""
        statement = self.top.get(name) or self.inner_imports.get(name)
        if not isinstance(statement, ast.ImportFrom):
            return None
        real = next(alias.name for alias in statement.names if (alias.asname or alias.name) == name)
        full = f"{self._origin(statement)}.{real}"
        return full if self._source.file(full) else None

    def bases_of(self, definition: ast.ClassDef) -> "list[tuple[Module, ast.ClassDef]]":
        names = (base.id for base in definition.bases if isinstance(base, ast.Name))
        return [home for name in names if (home := self.home_of(name))]

    def member(self, class_name: str, member: str) -> Member | None:
        home = self.home_of(class_name)
        return home[0].member_of(home[1], member) if home else None

    def member_of(self, definition: ast.ClassDef, member: str) -> Member | None:
        if own := _members(definition).get(member):
            return Member(self, definition, *own)
        bases = self.bases_of(definition)
        return next((found for module, base in bases if (found := module.member_of(base, member))), None)


def methods(definition: ast.ClassDef) -> Iterator[Function]:
    """The methods that a class defines itself."""
    return (item for item in definition.body if isinstance(item, Function))


@cache
def _members(definition: ast.ClassDef) -> dict[str, tuple[ast.AST, Function | None]]:
    found: dict[str, tuple[ast.AST, Function | None]] = {item.name: (item, None) for item in methods(definition)}
    for item in definition.body:
        for name in _names(item):
            found.setdefault(name, (item, None))
    for method in methods(definition):
        for node in ast.walk(method):
            for target in _targets(node):
                if (
                    isinstance(target, ast.Attribute)
                    and isinstance(target.value, ast.Name)
                    and target.value.id == "self"
                ):
                    found.setdefault(target.attr, (node, method))
    return found


def _targets(node: ast.AST) -> list[ast.expr]:
    match node:
        case ast.Assign():
            return node.targets
        case ast.AnnAssign():
            return [node.target]
        case _:
            return []


def _flat(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of a module, those within `if` and `try` included."""
    for statement in body:
        if isinstance(statement, ast.If):
            yield from _flat([*statement.body, *statement.orelse])
        elif isinstance(statement, ast.Try):
            yield from _flat([*statement.body, *(item for handler in statement.handlers for item in handler.body)])
        else:
            yield statement


def _names(statement: ast.stmt) -> list[str]:
    match statement:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            return [statement.name]
        case ast.Assign():
            return [target.id for target in statement.targets if isinstance(target, ast.Name)]
        case ast.AnnAssign(target=ast.Name() as target):
            return [target.id]
        case ast.Import() | ast.ImportFrom():
            return [alias.asname or alias.name.partition(".")[0] for alias in statement.names]
        case _:
            return []
