"""On which names of vLLM's our code relies, derived from our code.

Imported names; attributes and methods of vLLM's objects, as far as annotations tell which these are (`kinds`); names in `getattr`,
`setattr`, `hasattr` and `in_place_of`; methods that classes of ours override; modules' names that we replace.
"""

import ast
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from tests.support.vllm_signatures.bindings import Comprehension
from tests.support.vllm_signatures.kinds import Kinds, Object, Package, Scope, lineage, vllm_bases
from tests.support.vllm_signatures.parameters import Call, parameters_of
from tests.support.vllm_signatures.source import Function, Module, Source, methods

# What classes have by what Python makes of them.
_PYTHONS = MappingProxyType({"Enum": ("name", "value"), "NamedTuple": ("_replace", "_asdict"), "ABC": ("register",)})
_BY_NAME = ("getattr", "setattr", "hasattr", "in_place_of")


class Reliance(NamedTuple):
    """A name of vLLM's, where it is used, and how."""

    key: str
    at: str
    call: Call | None = None
    is_replaced: bool = False  # by something of ours, in a module of vLLM's

    @property
    def name(self) -> str:
        return self.key.rpartition(".")[2]


class Override(NamedTuple):
    """A method of a class of ours that derives from one of vLLM's; which may or may not have it."""

    key: str  # of vLLM's
    at: str
    parameters: tuple[str, ...]
    calls_super: bool

    @property
    def name(self) -> str:
        return self.key.rpartition(".")[2]


class Code:
    """Our code, or some of it, beside a vLLM."""

    def __init__(self, root: Path, files: Sequence[Path], engine: Path) -> None:
        """Read `files`, below `root`; `engine` is the folder that has `vllm/`."""
        self._root = root
        self.source = Source(root, engine)
        names = [".".join(file.relative_to(root).with_suffix("").parts).removesuffix(".__init__") for file in files]
        self._modules = [module for name in names if (module := self.source.module(name))]
        classes = [
            Object(module, node)
            for module in self._modules
            for node in ast.walk(module.tree)
            if isinstance(node, ast.ClassDef)
        ]
        self._final = [(kind, lineage(kind)) for kind in classes]

    def uses(self) -> list[Reliance | Override]:
        return [*self.reliances(), *self.overrides()]

    @cache  # noqa: B019  # it lives as long as the process
    def reliances(self) -> list[Reliance]:
        return [
            found
            for module in self._modules
            for scope, node in self._nodes(module)
            for found in self._uses(scope, node)
        ]

    @cache  # noqa: B019  # as above
    def overrides(self) -> list[Override]:
        """Return every method that vLLM may call in place of its own."""
        return [
            Override(
                f"{base.key()}.{method.name}",
                self._at(ours.module, method),
                tuple(parameters_of(method)),
                _calls_super(method),
            )
            for kind, classes in self._final
            for ours in classes
            if not ours.is_vllms
            for method in methods(ours.definition)
            if (base := _holder(kind, method.name))
        ]

    def _nodes(self, module: Module) -> Iterator[tuple[Scope, ast.AST]]:
        """Every node with the scope that it is in; functions within functions have that of the outermost."""

        def inside(node: ast.AST, scope: Scope) -> Iterator[tuple[Scope, ast.AST]]:
            for child in ast.iter_child_nodes(node):
                if isinstance(child, ast.ClassDef):
                    kinds: Kinds = frozenset(
                        kind for kind, classes in self._final if any(each.definition is child for each in classes)
                    )
                    yield from inside(child, Scope(self.source, module, None, kinds))
                elif isinstance(child, Function) and scope.function is None:
                    yield from inside(child, Scope(self.source, module, child, scope.self_kinds))
                elif isinstance(child, Comprehension):
                    yield from inside(child, scope.inside(child))
                else:
                    yield scope, child
                    yield from inside(child, scope)

        return inside(module.tree, Scope(self.source, module))

    def _uses(self, scope: Scope, node: ast.AST) -> Iterator[Reliance]:
        match node:
            case ast.Attribute():
                yield from self._of(scope, node, node.value, {node.attr}, stored=not isinstance(node.ctx, ast.Load))
            case ast.Call(func=ast.Attribute() as function) if not _is_spread(node):
                call = Call(len(node.args), tuple(each.arg or "" for each in node.keywords))
                yield from self._of(scope, node, function.value, {function.attr}, call=call)
            case ast.Call(func=ast.Name(id=name), args=[holder, wanted, *_]) if name in _BY_NAME:
                stored = name in ("setattr", "in_place_of")
                yield from self._of(scope, node, holder, scope.strings(wanted), stored=stored)

    def _of(
        self,
        scope: Scope,
        node: ast.expr,
        holder: ast.expr,
        names: set[str],
        *,
        call: Call | None = None,
        stored: bool = False,
    ) -> Iterator[Reliance]:
        is_super = isinstance(holder, ast.Call) and ast.unparse(holder.func) == "super"
        for kind in scope.self_kinds if is_super else scope.of(holder):
            for name in names:
                if isinstance(kind, Package) and kind.name.partition(".")[0] == "vllm":
                    yield Reliance(f"{kind.name}.{name}", self._at(scope.module, node), call, stored)
                elif isinstance(kind, Object) and (base := _holder(kind, name)):
                    if _is_pythons(kind, name) or (_has_between(scope, name) if is_super else _is_ours(kind, name)):
                        continue
                    replaced = stored and kind.is_class
                    yield Reliance(f"{base.key()}.{name}", self._at(scope.module, node), call, replaced)

    def _at(self, module: Module, node: ast.AST) -> str:
        return f"{module.file.relative_to(self._root)}:{getattr(node, 'lineno', 0)}"


def _holder(kind: Object, name: str) -> Object | None:
    """Return which class of vLLM's would have a name: of several bases the one that has it, else the first."""
    bases = vllm_bases(kind)
    return next((base for base in bases if base.module.member_of(base.definition, name)), bases[0] if bases else None)


def _is_ours(kind: Object, name: str) -> bool:
    """Whether a class of ours defines a name itself, rather than to say that vLLM does."""
    found = [(each, member.node) for each in lineage(kind) if not each.is_vllms and (member := each.own(name))]
    return any(not isinstance(node, ast.AnnAssign) or node.value or _is_dataclass(each) for each, node in found)


def _is_pythons(kind: Object, name: str) -> bool:
    bases = " ".join(ast.unparse(base) for each in lineage(kind) for base in each.definition.bases)
    return any(name in names for base, names in _PYTHONS.items() if base in bases)


def _is_dataclass(kind: Object) -> bool:
    return any("dataclass" in ast.unparse(each) for each in kind.definition.decorator_list)


def _has_between(scope: Scope, name: str) -> bool:
    """Whether `super()` may find a name in another class of ours, which is no mixin's neighbour but an ancestor."""
    for kind in scope.self_kinds:
        if isinstance(kind, Object):
            for each in lineage(kind):
                if not each.is_vllms and any(method is scope.function for method in methods(each.definition)):
                    return any(not up.is_vllms and up.own(name) for up in lineage(each)[1:])
    return False


def _is_spread(call: ast.Call) -> bool:
    return any(isinstance(each, ast.Starred) for each in call.args) or any(each.arg is None for each in call.keywords)


def _calls_super(method: Function) -> bool:
    return f"super().{method.name}(" in ast.unparse(method)
