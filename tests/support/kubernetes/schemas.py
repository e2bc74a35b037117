"""The schemas that rendered objects must fit: Kubernetes' own, and those of the CRDs. Unknown fields are mistakes.

Kubernetes' come from `kubernetes-validate` (PyPI), those of the CRDs from `@kubernetes-models` (npm). No package has that of
LeaderWorkerSet (v1): what ours use of it is described here, as the CRD of its release 0.10 has it.
"""

import json
from functools import cache
from typing import Any, Final

from jsonschema import Draft202012Validator
from referencing import Registry, Resource
from referencing.jsonschema import DRAFT202012

from tests.support.registry import from_npm, from_pypi

# Of Kubernetes: the oldest that the overlays are for, the newest that there is a schema of.
VERSIONS: Final = ("1.30.0", "1.37.0")
_KUBERNETES: Final = ("kubernetes-validate", "1.37.0")
_MODELS: Final = {  # group of a CRD → npm package, version
    "monitoring.coreos.com": ("@kubernetes-models/prometheus-operator", "4.0.0"),
    "gateway.networking.k8s.io": ("@kubernetes-models/gateway-api", "0.5.1"),
}
_BEGINS: Final = "const schema = "
_CORE: Final = "io.k8s.api.core.v1"
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
def _definitions(version: str) -> Schema:
    """Return Kubernetes' schemas, those of objects and of their parts, by name; unknown fields are refused."""
    member = f"kubernetes_validate/kubernetes-json-schema/v{version}-local-strict/_definitions.json"
    return json.loads(from_pypi(*_KUBERNETES, member).read_text())["$defs"]  # type: ignore[no-any-return]


@cache
def _validator(api_version: str, kind: str, version: str) -> Draft202012Validator:
    group, _, group_version = api_version.rpartition("/")
    wanted = {"group": group, "version": group_version, "kind": kind}
    for name, each in _definitions(version).items():
        if wanted in each.get("x-kubernetes-group-version-kind", ()):
            return Draft202012Validator(_ref(version, name), registry=_registry(version))
    if kind == "LeaderWorkerSet":
        schema = _leader_worker_set(_ref(version, f"{_CORE}.PodTemplateSpec"))
    else:
        text = from_npm(*_MODELS[group], f"{api_version}/{kind}.js").read_text()
        schema, _ = json.JSONDecoder().raw_decode(text, text.index(_BEGINS) + len(_BEGINS))
    schema = _closed(schema)
    schema["properties"]["metadata"] = _ref(version, _META)
    return Draft202012Validator(schema, registry=_registry(version))


@cache
def _registry(version: str) -> "Registry[Any]":
    """Kubernetes' definitions as one document: read once, not once for every kind."""
    document = Resource.from_contents({"$defs": _definitions(version)}, default_specification=DRAFT202012)
    registry: Registry[Any] = Registry().with_resource(f"urn:kubernetes:{version}", document)
    return registry.crawl()


def _ref(version: str, name: str) -> Schema:
    return {"$ref": f"urn:kubernetes:{version}#/$defs/{name}"}


def _leader_worker_set(pod_template: Schema) -> Schema:
    number, text = {"type": "integer"}, {"type": "string"}
    restarts = ["Default", "RecreateGroupOnPodRestart", "RecreateGroupAfterStart", "None"]
    rolling = _object(maxUnavailable=number, maxSurge=number)
    group = {"leaderTemplate": pod_template, "workerTemplate": pod_template, "size": number}
    return _object(
        apiVersion={"const": "leaderworkerset.x-k8s.io/v1"},
        kind=text,
        metadata={},
        spec=_object(
            replicas=number,
            leaderWorkerTemplate=_object(**group, restartPolicy={"enum": restarts}),
            rolloutStrategy=_object(type={"enum": ["RollingUpdate"]}, rollingUpdateConfiguration=rolling),
            startupPolicy={"enum": ["LeaderCreated", "LeaderReady"]},
        ),
    )


def _object(**properties: Schema) -> Schema:
    """Of fields that ours all have."""
    return {"type": "object", "properties": properties, "required": [*properties]}


def _closed(schema: Any) -> Any:
    """Return an OpenAPI schema as a JSON schema that refuses fields it does not name, as an API server prunes them."""
    if isinstance(schema, list):
        return [_closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    made = {name: _closed(each) for name, each in schema.items()}
    if schema.get("x-kubernetes-int-or-string"):
        made.pop("type", None)
    open_on_purpose = "additionalProperties" in schema or schema.get("x-kubernetes-preserve-unknown-fields")
    if isinstance(schema.get("properties"), dict) and "type" in schema and not open_on_purpose:
        made["additionalProperties"] = False
    return made
