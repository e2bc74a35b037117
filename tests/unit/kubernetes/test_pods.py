"""What must hold of every pod of every overlay, beyond the schemas."""

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from baton.kv_connector.engine.port_memory import shared_path
from tests.support.compose import compose_files, rendered
from tests.support.kubernetes.render import OVERLAYS, Object, pod_templates, render

ROOT: Final = Path(__file__).parents[3]
MADE_BY_HAND: Final = {"baton-cluster-secret", "baton-admin-token", "baton-api-keys", "baton-hub-token"}
IMAGES: Final = {
    "cpu": {"baton-proxy", "baton-node-cpu"},
    "cuda": {"baton-proxy", "baton-node-cuda"},
    "npu": {"baton-proxy", "baton-node-npu"},
    "rdma": {"baton-proxy", "baton-node-cuda"},
    "multi-host": {"baton-proxy", "baton-node-cuda"},
}
USUAL: Final = ("Deployment/proxy", "StatefulSet/prefill", "StatefulSet/decode")
USER: Final = 10001  # the images', whose folders are its own (test_dockerfiles.py)
GROUPS: Final = tuple(
    f"LeaderWorkerSet/{role}-group/{part}" for role in ("prefill", "decode") for part in ("leader", "worker")
)
TEMPLATES: Final = dict.fromkeys(OVERLAYS, USUAL) | {"multi-host": ("Deployment/proxy", *GROUPS)}
every_template = pytest.mark.parametrize(
    ("overlay", "name"), [(overlay, name) for overlay, names in TEMPLATES.items() for name in names]
)


@pytest.fixture
def template(overlay: str, name: str) -> Object:
    return pod_templates(render(overlay))[name]


def test_these_are_all(overlay: str) -> None:
    """A template that is added is tested too."""
    assert set(pod_templates(render(overlay))) == set(TEMPLATES[overlay])


def _container(template: Object) -> Object:
    (container,) = template["spec"]["containers"]
    return container  # type: ignore[no-any-return]


def _walk(found: Any) -> Iterator[Object]:
    if isinstance(found, dict):
        yield found
        for each in found.values():
            yield from _walk(each)
    elif isinstance(found, list):
        for each in found:
            yield from _walk(each)


@every_template
def test_what_a_pod_names_is_there(overlay: str, template: Object) -> None:
    """ConfigMaps with the hash of their content, claims, the account; Secrets are those that docs/kubernetes.md makes."""
    there = {(each["kind"], each["metadata"]["name"]) for each in render(overlay)}
    spec = template["spec"]
    volumes = spec["volumes"]

    named = {("ConfigMap", each["configMap"]["name"]) for each in volumes if "configMap" in each}
    named |= {
        ("PersistentVolumeClaim", each["persistentVolumeClaim"]["claimName"])
        for each in volumes
        if "persistentVolumeClaim" in each
    }
    secrets = {each["secret"]["secretName"] for each in volumes if "secret" in each}
    secrets |= {each["secretKeyRef"]["name"] for each in _walk(spec) if "secretKeyRef" in each}
    assert named
    assert named | {("ServiceAccount", spec["serviceAccountName"])} <= there
    assert secrets <= MADE_BY_HAND


@every_template
def test_every_mount_has_a_volume(overlay: str, template: Object) -> None:
    """Or a claim of the StatefulSet's."""
    claims = {
        claim["metadata"]["name"]
        for each in render(overlay)
        if each["kind"] == "StatefulSet" and each["spec"]["template"] == template
        for claim in each["spec"].get("volumeClaimTemplates", ())
    }
    volumes = {each["name"] for each in template["spec"]["volumes"]}

    mounts = _container(template)["volumeMounts"]

    assert not claims & volumes
    assert {each["name"] for each in mounts} == claims | volumes
    assert not [each for each in mounts if "subPath" in each]  # Baton follows files, and these never change


@every_template
def test_a_pod_runs_without_privileges(overlay: str, template: Object) -> None:
    """As the level `restricted` asks for, which the namespace enforces; RDMA's capability needs another level."""
    spec, container = template["spec"], _container(template)
    pod = {"runAsNonRoot": True, "runAsUser": USER, "seccompProfile": {"type": "RuntimeDefault"}}
    locked = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}
    if overlay == "rdma" and container["name"] == "node":
        # Added capabilities are not in effect unless the user is root, so it is root, with the one that pins memory.
        locked |= {"capabilities": {"drop": ["ALL"], "add": ["IPC_LOCK"]}, "runAsUser": 0, "runAsNonRoot": False}
    (namespace,) = [each for each in render(overlay) if each["kind"] == "Namespace"]
    level = namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"]

    assert pod.items() <= spec["securityContext"].items()
    assert container["securityContext"] == locked
    assert spec["automountServiceAccountToken"] is False
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(spec)
    assert not [each for each in spec["volumes"] if "hostPath" in each]
    assert level == ("privileged" if overlay == "rdma" else "restricted")


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_a_node_on_npus_may_open_them(role: str) -> None:
    """Devices are their group's, 0660; compose gives the same one."""
    pod = pod_templates(render("npu"))[f"StatefulSet/{role}"]["spec"]["securityContext"]
    composed = rendered(compose_files("npu"), {"MODEL": "any"})["services"][role]["group_add"]

    assert [str(group) for group in pod["supplementalGroups"]] == composed


@every_template
def test_service_names_do_not_become_settings(overlay: str, template: Object) -> None:
    """Kubernetes would set BATON_PROXY_PORT=tcp://… for the Service `baton-proxy`, which is a setting's name and refused."""
    assert template["spec"]["enableServiceLinks"] is False


@every_template
def test_used_ports_are_remembered_over_a_restart_of_the_container(overlay: str, template: Object) -> None:
    """A paused sender may still write to a port of the process before (`port_memory.py`): the file outlives it."""
    parent = str(shared_path().parent)
    mounts = {each["mountPath"]: each["name"] for each in _container(template)["volumeMounts"]}
    volumes = {each["name"]: each for each in template["spec"]["volumes"]}

    assert parent == "/tmp"
    assert "emptyDir" in volumes[mounts[parent]]
    assert not [each for each in _container(template).get("env", ()) if each["name"] == "TMPDIR"]


@every_template
def test_a_pod_spreads_has_resources_and_a_hook(overlay: str, template: Object) -> None:
    """And its containers ask for what they need."""
    spec, container = template["spec"], _container(template)

    assert [each["topologyKey"] for each in spec["topologySpreadConstraints"]][-1] == "kubernetes.io/hostname"
    for each in spec["topologySpreadConstraints"]:
        assert each["labelSelector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
    assert {"cpu", "memory"} <= set(container["resources"]["requests"])
    assert "memory" in container["resources"]["limits"]
    assert container["lifecycle"]["preStop"]


def test_images_are_ours_of_this_version(overlay: str) -> None:
    """None is left at the base's placeholder."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    images = {_container(template)["image"] for template in pod_templates(render(overlay)).values()}

    assert images == {f"{name}:{version}" for name in IMAGES[overlay]}


@pytest.mark.parametrize("component", ["proxy", "prefill", "decode"])
def test_services_and_budgets_find_their_pods(overlay: str, component: str) -> None:
    """Each component has a Service and a PodDisruptionBudget, whose labels its pods have."""
    objects = render(overlay)
    labels = [
        template["metadata"]["labels"]
        for template in pod_templates(objects).values()
        if template["metadata"]["labels"]["app.kubernetes.io/component"] == component
    ]
    (budget,) = [
        each for each in objects if each["kind"] == "PodDisruptionBudget" and each["metadata"]["name"] == component
    ]
    services = [
        each["spec"]
        for each in objects
        if each["kind"] == "Service" and each["spec"]["selector"]["app.kubernetes.io/component"] == component
    ]

    assert labels
    assert all(budget["spec"]["selector"]["matchLabels"].items() <= each.items() for each in labels)
    (service,) = services
    leaders = "leaderworkerset.sigs.k8s.io/worker-index"  # set by the controller
    assert service["selector"].get(leaders) == ("0" if overlay == "multi-host" and component != "proxy" else None)
    asked = {name: value for name, value in service["selector"].items() if name != leaders}
    assert all(asked.items() <= each.items() for each in labels)


def test_only_one_thing_sets_the_number_of_proxies(overlay: str) -> None:
    """Where an autoscaler does, applying the overlay again must not set it back."""
    objects = render(overlay)
    (proxies,) = [each for each in objects if each["kind"] == "Deployment"]
    scalers = [each for each in objects if each["kind"] == "HorizontalPodAutoscaler"]

    assert ("replicas" in proxies["spec"]) is not bool(scalers)
    assert [each["spec"]["scaleTargetRef"]["name"] for each in scalers] == ["proxy"] * (overlay != "cpu")
