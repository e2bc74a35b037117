"""What a LeaderWorkerSet (v1) may hold, as far as it is described by hand: no package registry has its schema.

The fields and words were compared with the CRD of LeaderWorkerSet 0.10; `BATON_CRDS` (schemas.py) takes the CRD itself. Pod
templates are Kubernetes' own and checked in full.
"""

from collections.abc import Callable
from typing import Any, Final

_NUMBER_OR_SHARE: Final = {"anyOf": [{"type": "integer"}, {"type": "string", "pattern": "^[0-9]+%?$"}]}


def leader_worker_set(ref: Callable[[str], str]) -> dict[str, Any]:
    """Return the schema; `ref` gives the address of a definition of Kubernetes' own."""
    pod_template = {"$ref": ref("io.k8s.api.core.v1.PodTemplateSpec")}
    claim = {"$ref": ref("io.k8s.api.core.v1.PersistentVolumeClaim")}
    group = {
        "leaderTemplate": pod_template,
        "workerTemplate": pod_template,
        "size": {"type": "integer", "minimum": 1},
        "restartPolicy": {"enum": ["Default", "RecreateGroupOnPodRestart", "RecreateGroupAfterStart", "None"]},
        "volumeClaimTemplates": {"type": "array", "items": claim},
        "persistentVolumeClaimRetentionPolicy": {"type": "object"},
        "subGroupPolicy": {"type": "object"},
    }
    rolling = {"partition": {"type": "integer"}, "maxUnavailable": _NUMBER_OR_SHARE, "maxSurge": _NUMBER_OR_SHARE}
    spec = {
        "replicas": {"type": "integer", "minimum": 0},
        "leaderWorkerTemplate": _object(group, "workerTemplate"),
        "rolloutStrategy": _object(
            {"type": {"enum": ["RollingUpdate"]}, "rollingUpdateConfiguration": _object(rolling)}, "type"
        ),
        "startupPolicy": {"enum": ["LeaderCreated", "LeaderReady"]},
        "networkConfig": _object({"subdomainPolicy": {"enum": ["Shared", "UniquePerReplica"]}}, "subdomainPolicy"),
    }
    return _object(
        {
            "apiVersion": {"const": "leaderworkerset.x-k8s.io/v1"},
            "kind": {"const": "LeaderWorkerSet"},
            "metadata": {},
            "spec": _object(spec, "leaderWorkerTemplate"),
        },
        "apiVersion",
        "kind",
        "spec",
    )


def _object(properties: dict[str, Any], *required: str) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required)}
