"""Infers, from source alone, of which class of vLLM's the objects are that our code handles.

An annotation, a constructor, and the declared type of an attribute or of what a call returns are followed through our files and
vLLM's, without regard to the order of statements. What is annotated `Any` stays unknown.
"""

import ast
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from tests.support.vllm_signatures.bindings import Comprehension, Path, annotations, bindings, follow
from tests.support.vllm_signatures.source import Function, Member, Module, Source, _members


class Object(NamedTuple):
    """An instance of a class, or the class itself."""

    module: Module
    definition: ast.ClassDef
    is_class: bool = False

    def key(self) -> str:
        """As it stands among the facts."""
        return f"{self.module.name}:{self.definition.name}"

    @property
    def is_vllms(self) -> bool:
        return self.module.name.partition(".")[0] == "vllm"

    def own(self, name: str) -> Member | None:
        found = _members(self.definition).get(name)
        return Member(self.module, self.definition, *found) if found else None


class Package(NamedTuple):
    name: str

    def key(self) -> str:
        return self.name


class Callee(NamedTuple):
    module: Module
    function: Function


class Many(NamedTuple):
    """A list, or a mapping by its values."""

    of: "Kinds"


Kinds = frozenset[Object | Package | Callee | Many]
NONE: Kinds = frozenset()
_SAME = ("list", "sorted", "tuple", "set", "reversed", "iter", "frozenset")
_MANY = ("list", "tuple", "set", "frozenset", "Sequence", "Iterable", "Iterator", "Collection", "deque")


class Scope:
    """Where names mean something: a function, a comprehension, or a module as a whole."""

    def __init__(
        self,
        source: Source,
        module: Module,
        function: Function | None = None,
        self_kinds: Kinds = NONE,
        *,
        comprehension: Comprehension | None = None,
        outer: "Scope | None" = None,
    ) -> None:
        self.source = source
        self.module = module
        self.function = function
        self.self_kinds = self_kinds
        self._body = comprehension or function or module.tree
        self._outer = outer
        self._busy: set[str] = set()

    def inside(self, comprehension: Comprehension) -> "Scope":
        return Scope(self.source, self.module, self.function, self.self_kinds, comprehension=comprehension, outer=self)

    # --- what is bound to a name ---

    @property
    def _bound(self) -> Mapping[str, list[tuple[ast.expr, Path]]]:
        return bindings(self._body)

    def _named(self, name: str) -> Kinds:
        if name in ("self", "cls") and self.self_kinds:
            return self.self_kinds
        if name in self._busy:
            return NONE
        if self._outer and name not in {**self._bound, **annotations(self._body)}:
            return self._outer._named(name)
        self._busy.add(name)
        try:
            local = self.annotation(annotations(self._body).get(name))
            for value, path in () if local else self._bound.get(name, ()):
                # A comprehension's own names mean nothing yet where it says what it goes through.
                local |= (self._outer or self)._at(value, path)
            return local or self._global(name)
        finally:
            self._busy.discard(name)

    def _global(self, name: str) -> Kinds:
        if home := self.module.home_of(name):
            return frozenset({Object(*home, is_class=True)})
        if full := self.module.module_named(name):
            return frozenset({Package(full)})
        found = self.module.find(name)
        return frozenset({Callee(self.module, found)}) if isinstance(found, Function) else NONE

    def _at(self, value: ast.expr, path: Path) -> Kinds:
        if path and isinstance(path[0], int) and isinstance(value, ast.Tuple):
            return self._at(value.elts[path[0]], path[1:]) if path[0] < len(value.elts) else NONE
        if path[:1] == ("each",) and isinstance(value, ast.Call) and isinstance(value.func, ast.Name):
            if value.func.id == "zip" and len(path) > 1 and isinstance(path[1], int):
                return self._at(value.args[path[1]], ("each", *path[2:]))
            if value.func.id == "enumerate" and path[1:2] == (1,):
                return self._at(value.args[0], ("each", *path[2:]))
        match path, value:
            case ("each", 1), ast.Call(func=ast.Attribute(value=mapping, attr="items")):
                return _each(self.of(mapping))
        found = self.of(value)
        for step in path:
            found = _each(found) if step == "each" else NONE
        return found

    # --- what an expression is ---

    def of(self, expr: ast.expr) -> Kinds:  # noqa: PLR0911  # one for each kind of node
        """Return what an expression may be; nothing where that is not known."""
        match expr:
            case ast.Name():
                return self._named(expr.id)
            case ast.Attribute():
                return self._members(self.of(expr.value), expr.attr)
            case ast.Call():
                return self._called(expr)
            case ast.Subscript():
                if ast.unparse(expr.value) == "sys.modules":
                    return self._modules(expr.slice)
                return _each(self.of(expr.value))
            case ast.ListComp() | ast.SetComp() | ast.GeneratorExp():
                return _many(self.inside(expr).of(expr.elt))
            case ast.IfExp():
                return self.of(expr.body) | self.of(expr.orelse)
            case ast.BoolOp():
                return _union(map(self.of, expr.values))
            case ast.NamedExpr() | ast.Await():
                return self.of(expr.value)
            case _:
                return NONE

    def _called(self, call: ast.Call) -> Kinds:  # noqa: C901  # one for each kind of node
        match call.func:
            case ast.Name(id="super"):
                return _union(frozenset(vllm_bases(kind)) for kind in self.self_kinds if isinstance(kind, Object))
            case ast.Name(id="getattr"):
                return _union(self._members(self.of(call.args[0]), name) for name in self.strings(call.args[1]))
            case ast.Name(id=name) if name in _SAME and call.args:
                return self.of(call.args[0])
            case ast.Attribute(value=ast.Attribute(value=ast.Name(id="sys"), attr="modules"), attr="get"):
                return self._modules(call.args[0])
            case ast.Attribute(attr="values" | "copy"):
                if whole := frozenset(kind for kind in self.of(call.func.value) if isinstance(kind, Many)):
                    return frozenset(whole)
            case ast.Attribute(attr="get" | "pop" | "popleft"):
                if many := _each(self.of(call.func.value)):
                    return many
        found = NONE
        for kind in self.of(call.func):
            if isinstance(kind, Object) and kind.is_class:
                found |= {kind._replace(is_class=False)}
            elif isinstance(kind, Callee):
                found |= Scope(self.source, kind.module).annotation(kind.function.returns)
        return found

    def _modules(self, name: ast.expr) -> Kinds:
        return frozenset(Package(each) for each in self.strings(name) if self.source.file(each))

    def _members(self, kinds: Kinds, name: str) -> Kinds:
        return _union(self._member(kind, name) for kind in kinds)

    def _member(self, kind: Any, name: str) -> Kinds:
        if isinstance(kind, Package):
            module = self.source.module(kind.name)
            return Scope(self.source, module)._global(name) if module else NONE
        if not isinstance(kind, Object):
            return NONE
        found = (own for each in lineage(kind) if (own := each.own(name)))
        return next((kinds for member in found if (kinds := self._declared(member, kind))), NONE)

    def _declared(self, member: Member, kind: Object) -> Kinds:
        node = member.node
        within = Scope(self.source, member.module, member.method, frozenset({kind}))
        if isinstance(node, Function):
            decorators = " ".join(ast.unparse(each) for each in node.decorator_list)
            return (
                within.annotation(node.returns)
                if "property" in decorators
                else frozenset({Callee(member.module, node)})
            )
        if isinstance(node, ast.AnnAssign) and (found := within.annotation(node.annotation)):
            return found
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value and node not in _open:
            _open.add(node)
            try:
                return within.of(node.value)
            finally:
                _open.discard(node)
        return NONE

    def annotation(self, expr: ast.expr | None) -> Kinds:  # noqa: PLR0911  # one for each kind of node
        match expr:
            case ast.Constant(value=str(text)):
                return self.annotation(ast.parse(text, mode="eval").body)
            case ast.Name(id=name):
                home = self.module.home_of(name)
                return frozenset({Object(*home)}) if home else NONE
            case ast.Tuple():
                return _union(map(self.annotation, expr.elts))
            case ast.BinOp(op=ast.BitOr()):
                return self.annotation(expr.left) | self.annotation(expr.right)
            case ast.Subscript(value=ast.Name(id=name)):
                inner = expr.slice.elts if isinstance(expr.slice, ast.Tuple) else [expr.slice]
                if name in _MANY:
                    return _many(_union(map(self.annotation, inner)))
                if name in ("dict", "Mapping", "defaultdict", "OrderedDict"):
                    return _many(self.annotation(inner[-1]))
                if name == "type":
                    return frozenset(
                        k._replace(is_class=True) for k in self.annotation(inner[0]) if isinstance(k, Object)
                    )
                return (
                    _union(map(self.annotation, inner))
                    if name in ("Optional", "Union", "Annotated", "ClassVar")
                    else NONE
                )
            case _:
                return NONE

    # --- strings ---

    def strings(self, expr: ast.expr) -> set[str]:
        """Return which strings an expression may be, where constants of the module say so."""
        return {each for each in self._values(expr) if isinstance(each, str)}

    def _values(self, expr: ast.expr) -> list[Any]:  # noqa: PLR0911  # one for each kind of node
        match expr:
            case ast.Constant():
                return [expr.value]
            case ast.Tuple() | ast.List():
                return [[value for each in expr.elts for value in self._values(each)]]
            case ast.Dict():
                pairs = zip(expr.keys, expr.values, strict=True)
                return [{self._values(key)[0]: self._values(value)[0] for key, value in pairs if key}]
            case ast.Call(func=ast.Name(id="MappingProxyType")):
                return self._values(expr.args[0])
            case ast.Call(func=ast.Attribute(value=mapping, attr="items")):
                return [[*value.items()] for value in self._values(mapping) if isinstance(value, dict)]
            case ast.Name(id=name) if name in self._bound:
                return [found for value, path in self._bound[name] for found in follow(self._values(value), path)]
            case ast.Name(id=name) if self._outer or self.function:
                return (self._outer or Scope(self.source, self.module))._values(expr)
            case ast.Name(id=name) if other := self.module.origin_of(name):
                return Scope(self.source, other)._values(expr)
            case _:
                return []


_open: set[ast.AST] = set()  # assignments that are being followed


def lineage(kind: Object) -> list[Object]:
    """A class, and those that it derives from, depth first."""
    bases = [Object(*base, kind.is_class) for base in kind.module.bases_of(kind.definition)]
    return [kind, *(each for base in bases for each in lineage(base))]


def vllm_bases(kind: Object) -> list[Object]:
    """The classes of vLLM's that a class of ours derives from, without those that these derive from."""
    if kind.is_vllms:
        return [kind]
    return [each for base in kind.module.bases_of(kind.definition) for each in vllm_bases(Object(*base, kind.is_class))]


def _many(kinds: Kinds) -> Kinds:
    return frozenset({Many(kinds)}) if kinds else NONE


def _each(kinds: Kinds) -> Kinds:
    return _union(kind.of for kind in kinds if isinstance(kind, Many))


def _union(found: Iterable[Kinds]) -> Kinds:
    return frozenset().union(*found)
