"""What a function, a comprehension or a module binds its names to, without regard to the order of statements."""

import ast
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

Path = tuple[int | str, ...]  # into what a name is bound to: places of a tuple, or "each"
Comprehension = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp


@cache
def bindings(body: ast.AST) -> Mapping[str, list[tuple[ast.expr, Path]]]:  # noqa: C901  # one for each kind of node
    """Name → the expressions that it is bound to, and where in their values."""
    found: dict[str, list[tuple[ast.expr, Path]]] = {}

    def bind(target: ast.AST | None, value: ast.expr | None, path: Path = ()) -> None:
        if isinstance(target, ast.Name) and value is not None:
            found.setdefault(target.id, []).append((value, path))
        elif isinstance(target, ast.Tuple | ast.List):
            for index, each in enumerate(target.elts):
                bind(each, value, (*path, index))

    for node in _own_nodes(body):
        match node:
            case ast.Assign():
                for target in node.targets:
                    bind(target, node.value)
            case ast.AnnAssign() | ast.NamedExpr():
                bind(node.target, node.value)
            case ast.For() | ast.AsyncFor() | ast.comprehension():
                bind(node.target, node.iter, ("each",))
            case ast.withitem():
                bind(node.optional_vars, node.context_expr)
            case ast.arguments(args=args, defaults=[*_, _] as defaults):
                for each, value in zip(args[-len(defaults) :], defaults, strict=True):
                    bind(ast.Name(each.arg), value)
    return found


@cache
def annotations(body: ast.AST) -> Mapping[str, ast.expr]:
    """Name → what an annotation or `isinstance` says of it; of a function or comprehension."""
    found: dict[str, ast.expr] = {}
    for node in () if isinstance(body, ast.Module) else _own_nodes(body):
        match node:
            case ast.arg(annotation=ast.expr() as annotation):
                found[node.arg] = annotation
            case ast.AnnAssign(target=ast.Name(id=name)):
                found[name] = node.annotation
            case ast.Call(func=ast.Name(id="isinstance"), args=[ast.Name(id=name), kind]):
                found[name] = kind
    return found


@cache
def _own_nodes(body: ast.AST) -> Sequence[ast.AST]:
    """All nodes but those of comprehensions within."""
    found = [body]
    for node in found:
        found += [child for child in ast.iter_child_nodes(node) if not isinstance(child, Comprehension)]
    return found


def follow(values: list[Any], path: Path) -> list[Any]:
    """Return what lies at a path in some values."""
    for step in path:
        if step == "each":
            values = [each for value in values if isinstance(value, list | dict) for each in value]
        elif isinstance(step, int):
            values = [value[step] for value in values if isinstance(value, list | tuple) and step < len(value)]
    return values
