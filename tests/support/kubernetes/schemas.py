"""The schemas that rendered objects must fit: Kubernetes' own, and those of the CRDs. Unknown fields are mistakes.

Kubernetes' come from `kubernetes-validate` (PyPI), ServiceMonitor's, PrometheusRule's and HTTPRoute's from `@kubernetes-models`
(npm). No package holds LeaderWorkerSet's: `leader_worker_set.py` describes it. `BATON_CRDS` names a folder of CRDs as YAML, of a
cluster (`kubectl get crd -o yaml`) or a release, whose schemas are taken instead of these.
"""

import json
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final

import yaml
from jsonschema import Draft202012Validator
from referencing import Registry, Resource
from referencing.jsonschema import DRAFT202012

from tests.support.kubernetes.leader_worker_set import leader_worker_set
from tests.support.registry import from_npm, from_pypi

VERSIONS: Final = (
    "1.30.0",
    "1.37.0",
)  # of Kubernetes: the oldest that the overlays are for, the newest that there is a schema of
_KUBERNETES: Final = ("kubernetes-validate", "1.37.0")
_MODELS: Final = {  # API version, kind → npm package, version, file
    ("monitoring.coreos.com/v1", kind): (
        "@kubernetes-models/prometheus-operator",
        "4.0.0",
        f"monitoring.coreos.com/v1/{kind}.js",
    )
    for kind in ("ServiceMonitor", "PrometheusRule")
} | {
    ("gateway.networking.k8s.io/v1", "HTTPRoute"): (
        "@kubernetes-models/gateway-api",
        "0.5.1",
        "gateway.networking.k8s.io/v1/HTTPRoute.js",
    )
}
_BEGINS: Final = "const schema = "
_META: Final = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"
Schema = dict[str, Any]


def problems(found: Schema, version: str) -> list[str]:
    """Say what is wrong with an object for a version of Kubernetes; nothing, if it fits."""
    validator = _validator(found["apiVersion"], found["kind"], version)
    return [
        f"{found['kind']} {found['metadata']['name']}: {error.json_path}: {error.message[:300]}"
        for error in validator.iter_errors(found)
    ]


@cache
def definitions(version: str) -> Schema:
    """Return Kubernetes' schemas, those of objects and of their parts, by name; unknown fields are refused."""
    member = f"kubernetes_validate/kubernetes-json-schema/v{version}-local-strict/_definitions.json"
    parsed: Schema = json.loads(from_pypi(*_KUBERNETES, member).read_text())
    return parsed["$defs"]  # type: ignore[no-any-return]


@cache
def _validator(api_version: str, kind: str, version: str) -> Draft202012Validator:
    group = api_version.rpartition("/")[0]
    known = definitions(version)
    name = _own_name(known, api_version, kind)
    if name is not None:
        return Draft202012Validator({"$ref": _ref(version, name)}, registry=_registry(version))
    schema = _crds().get((api_version, kind))
    if schema is None and group == "leaderworkerset.x-k8s.io":
        schema = leader_worker_set(lambda name: _ref(version, name))
    if schema is None:
        schema = _model(*_MODELS[api_version, kind])
    schema = closed(schema)
    schema["properties"]["metadata"] = {"$ref": _ref(version, _META)}
    return Draft202012Validator(schema, registry=_registry(version))


@cache
def _registry(version: str) -> "Registry[Any]":
    """Kubernetes' definitions as one document: read once, not once for every kind."""
    document = Resource.from_contents({"$defs": definitions(version)}, default_specification=DRAFT202012)
    registry: Registry[Any] = Registry().with_resource(_ref(version), document)
    return registry.crawl()


def _ref(version: str, name: str = "") -> str:
    return f"urn:kubernetes:{version}" + (f"#/$defs/{name}" if name else "")


def _own_name(known: Schema, api_version: str, kind: str) -> str | None:
    group, _, version = api_version.rpartition("/")
    wanted = {"group": group, "version": version, "kind": kind}
    return next(
        (name for name, each in known.items() if wanted in each.get("x-kubernetes-group-version-kind", ())), None
    )


def _model(package: str, version: str, file: str) -> Schema:
    """Return the schema that a module of `@kubernetes-models` holds as JSON."""
    text = from_npm(package, version, file).read_text()
    schema, _ = json.JSONDecoder().raw_decode(text, text.index(_BEGINS) + len(_BEGINS))
    return schema  # type: ignore[no-any-return]


@cache
def _crds() -> dict[tuple[str, str], Schema]:
    folder = os.environ.get("BATON_CRDS")
    found = {}
    for crd in _documents(Path(folder)) if folder else ():
        spec = crd["spec"]
        for version in spec["versions"]:
            key = f"{spec['group']}/{version['name']}", spec["names"]["kind"]
            found[key] = version["schema"]["openAPIV3Schema"]
    return found


def _documents(folder: Path) -> Iterator[Schema]:
    for file in sorted(folder.glob("*.y*ml")):
        for document in yaml.safe_load_all(file.read_text()):
            for each in (document or {}).get("items", [document]):
                if (each or {}).get("kind") == "CustomResourceDefinition":
                    yield each


def closed(schema: Any) -> Any:
    """Return an OpenAPI schema as a JSON schema that refuses fields it does not name, as an API server prunes them."""
    if isinstance(schema, list):
        return [closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    made = {name: closed(each) for name, each in schema.items()}
    if schema.get("x-kubernetes-int-or-string"):
        made.pop("type", None)
    properties = schema.get("properties")
    open_on_purpose = "additionalProperties" in schema or schema.get("x-kubernetes-preserve-unknown-fields")
    if isinstance(properties, dict) and "type" in schema and not open_on_purpose:
        made["additionalProperties"] = False
    return made
