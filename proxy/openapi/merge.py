"""Our document with the engine's description of the routes that we serve for it. Pure."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from baton.proxy.openapi.static_routes import ANSWERS

_REF: Final = "#/components/schemas/"
_PREFIX: Final = "Engine"  # of a schema that has our name and is another
Document = Mapping[str, Any]


def merged(ours: Document, engines: Document, routes: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """Return our document with the engine's operations in the place of those that we describe by hand."""
    paths = {path: dict(item) for path, item in ours.get("paths", {}).items()}
    schemas = dict(ours.get("components", {}).get("schemas", {}))
    theirs = engines.get("components", {}).get("schemas", {})
    renamed = {name: _PREFIX + name for name in theirs if name in schemas and schemas[name] != theirs[name]}
    for method, path in routes:
        operation = engines.get("paths", {}).get(path, {}).get(method.lower())
        if operation is None:
            continue
        answers = {str(status): answer for status, answer in ANSWERS.items()} | operation.get("responses", {})
        operation = {**operation, "responses": {status: answers[status] for status in answers if status != "422"}}
        paths.setdefault(path, {})[method.lower()] = _rename({**operation, "tags": ["engine"]}, renamed)
        for name in _needed(operation, theirs):
            schemas[renamed.get(name, name)] = _rename(theirs[name], renamed)
    components = {**ours.get("components", {}), "schemas": schemas}
    return {**ours, "paths": paths, "components": components}


def _needed(operation: Any, schemas: Document) -> set[str]:
    """Return the names of all schemas that an operation refers to, however indirectly."""
    found: set[str] = set()
    pending = [operation]
    while pending:
        item = pending.pop()
        if isinstance(item, dict):
            pending.extend(item.values())
            mapping = item.get("mapping")  # of a discriminator
            for ref in (item.get("$ref"), *(mapping.values() if isinstance(mapping, dict) else ())):
                name = ref.removeprefix(_REF) if isinstance(ref, str) and ref.startswith(_REF) else ""
                if name in schemas and name not in found:
                    found.add(name)
                    pending.append(schemas[name])
        elif isinstance(item, list):
            pending.extend(item)
    return found


def _rename(value: Any, renamed: Mapping[str, str]) -> Any:
    if not renamed:
        return value
    if isinstance(value, dict):
        return {key: _rename(item, renamed) for key, item in value.items()}
    if isinstance(value, list):
        return [_rename(item, renamed) for item in value]
    if isinstance(value, str) and value.startswith(_REF):
        name = value.removeprefix(_REF)
        return _REF + renamed.get(name, name)
    return value
