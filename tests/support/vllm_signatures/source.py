"""Looks names up in a package's source, without importing anything of it."""

import ast
from collections.abc import Iterator
from functools import cached_property, lru_cache
from pathlib import Path

Function = ast.FunctionDef | ast.AsyncFunctionDef
Found = Function | ast.ClassDef | ast.stmt | str  # a module's name, as text


class Source:
    """Python packages below one folder."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.module = lru_cache(maxsize=None)(self._module)

    def file(self, module: str) -> Path | None:
        """Where a module's source is."""
        path = self._root.joinpath(*module.split("."))
        return next((file for file in (path.with_suffix(".py"), path / "__init__.py") if file.exists()), None)

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
        return found.member(class_name, member) if found else None


class Module:
    """One module's source."""

    def __init__(self, source: Source, name: str, file: Path) -> None:
        self._source = source
        self.name = name
        self._is_package = file.name == "__init__.py"
        self._tree = ast.parse(file.read_text())

    @cached_property
    def top(self) -> dict[str, ast.stmt]:
        """What the module defines or imports, by name; of several the first."""
        found: dict[str, ast.stmt] = {}
        for statement in _flat(self._tree.body):
            for name in _names(statement):
                found.setdefault(name, statement)
        return found

    def find(self, name: str) -> Found | None:
        """See `Source.find`."""
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
        statement = self.top.get(name)
        if isinstance(statement, ast.ClassDef):
            return self, statement
        if isinstance(statement, ast.ImportFrom):
            origin = self._source.module(self._origin(statement))
            real = next(alias.name for alias in statement.names if (alias.asname or alias.name) == name)
            return origin.home_of(real) if origin else None
        return None

    def member(self, class_name: str, member: str) -> Function | ast.AST | None:
        """See `Source.member`."""
        home = self.home_of(class_name)
        if home is None:
            return None
        module, definition = home
        if own := _members(definition).get(member):
            return own
        bases = (base.id for base in definition.bases if isinstance(base, ast.Name))
        return next((found for base in bases if (found := module.member(base, member))), None)


def methods(definition: ast.ClassDef) -> Iterator[Function]:
    """The methods that a class defines itself."""
    return (item for item in definition.body if isinstance(item, Function))


def _members(definition: ast.ClassDef) -> dict[str, ast.AST]:
    found: dict[str, ast.AST] = {item.name: item for item in methods(definition)}
    for item in definition.body:
        for name in _names(item):
            found.setdefault(name, item)
    for method in methods(definition):
        for node in ast.walk(method):
            for target in _targets(node):
                if (
                    isinstance(target, ast.Attribute)
                    and isinstance(target.value, ast.Name)
                    and target.value.id == "self"
                ):
                    found.setdefault(target.attr, node)
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
