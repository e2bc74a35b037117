"""What must hold of every pod of every overlay, beyond the schemas."""

import json
import re
import tomllib
from pathlib import Path
from typing import Final

import pytest

from baton.kv_connector.engine.port_memory import shared_path
from tests.support.compose import compose_files, rendered
from tests.support.kubernetes.render import OVERLAYS, Object, component_of, container_of, named, pod_templates, render

ROOT: Final = Path(__file__).parents[3]
MADE_BY_HAND: Final = {"baton-cluster-secret", "baton-admin-token", "baton-api-keys", "baton-hub-token"}
USUAL: Final = ("Deployment/proxy", "StatefulSet/prefill", "StatefulSet/decode")
GROUPS: Final = tuple(
    f"LeaderWorkerSet/{role}-group/{part}" for role in ("prefill", "decode") for part in ("leader", "worker")
)
TEMPLATES: Final = dict.fromkeys(OVERLAYS, USUAL) | {"multi-host": ("Deployment/proxy", *GROUPS)}
USER: Final = 10001  # the images', whose folders are its own (test_dockerfiles.py)
every_template = pytest.mark.parametrize(
    ("overlay", "name"), [(overlay, name) for overlay, names in TEMPLATES.items() for name in names]
)


@pytest.fixture
def template(overlay: str, name: str) -> Object:
    return pod_templates(render(overlay))[name]


def test_these_are_all(overlay: str) -> None:
    """A template that is added is tested too. Images are ours of this version: none is left at the base's placeholder."""
    templates = pod_templates(render(overlay))
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]

    assert set(templates) == set(TEMPLATES[overlay])
    device = overlay if overlay in ("cpu", "npu") else "cuda"
    images = {f"baton-{name}:{version}" for name in ("proxy", f"node-{device}")}
    assert {container_of(template)["image"] for template in templates.values()} == images


@every_template
def test_what_a_pod_names_is_there(overlay: str, template: Object) -> None:
    """ConfigMaps with the hash of their content, claims, the account; Secrets are those that docs/kubernetes.md makes."""
    there = {(each["kind"], each["metadata"]["name"]) for each in render(overlay)}
    spec = template["spec"]
    volumes = spec["volumes"]

    wanted = {("ConfigMap", each["configMap"]["name"]) for each in volumes if "configMap" in each}
    assert wanted
    claims = [each["persistentVolumeClaim"] for each in volumes if "persistentVolumeClaim" in each]
    wanted |= {("PersistentVolumeClaim", each["claimName"]) for each in claims}
    assert wanted | {("ServiceAccount", spec["serviceAccountName"])} <= there
    secrets = {each["secret"]["secretName"] for each in volumes if "secret" in each}
    secrets.update(re.findall(r'"secretKeyRef": {[^}]*"name": "([^"]+)"', json.dumps(spec)))
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

    mounts = container_of(template)["volumeMounts"]

    assert not claims & volumes
    assert {each["name"] for each in mounts} == claims | volumes
    assert not [each for each in mounts if "subPath" in each]  # Baton follows files, and these never change


@every_template
def test_a_pod_runs_without_privileges(overlay: str, template: Object) -> None:
    """As the level `restricted` asks for, which the namespace enforces; RDMA's capability needs another level."""
    spec, container = template["spec"], container_of(template)
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
    assert spec["enableServiceLinks"] is False  # BATON_PROXY_PORT=tcp://… would be a setting, which Baton refuses
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
def test_used_ports_are_remembered_over_a_restart_of_thecontainer_of(overlay: str, template: Object) -> None:
    """A paused sender may still write to a port of the process before (`port_memory.py`): the file outlives it."""
    parent = str(shared_path().parent)
    mounts = {each["mountPath"]: each["name"] for each in container_of(template)["volumeMounts"]}
    volumes = {each["name"]: each for each in template["spec"]["volumes"]}

    assert parent == "/tmp"
    assert "emptyDir" in volumes[mounts[parent]]
    assert not [each for each in container_of(template).get("env", ()) if each["name"] == "TMPDIR"]


@every_template
def test_a_pod_spreads_has_resources_and_a_hook(overlay: str, template: Object) -> None:
    """And its containers ask for what they need."""
    spec, container = template["spec"], container_of(template)

    assert [each["topologyKey"] for each in spec["topologySpreadConstraints"]][-1] == "kubernetes.io/hostname"
    for each in spec["topologySpreadConstraints"]:
        assert each["labelSelector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
    assert {"cpu", "memory"} <= set(container["resources"]["requests"])
    assert "memory" in container["resources"]["limits"]
    assert container["lifecycle"]["preStop"]


@pytest.mark.parametrize("component", ["proxy", "prefill", "decode"])
def test_services_and_budgets_find_their_pods(overlay: str, component: str) -> None:
    """Each component has a Service and a PodDisruptionBudget, whose labels its pods have."""
    templates = pod_templates(render(overlay)).values()
    labels = [each["metadata"]["labels"] for each in templates if component_of(each) == component]
    service = "baton-proxy" if component == "proxy" else component
    asked = dict(named(render(overlay), "Service", service)["spec"]["selector"])
    budget = named(render(overlay), "PodDisruptionBudget", component)["spec"]["selector"]["matchLabels"]

    assert labels
    leader = asked.pop("leaderworkerset.sigs.k8s.io/worker-index", None)  # a label that the controller sets
    assert leader == ("0" if overlay == "multi-host" and component != "proxy" else None)
    for wanted in (asked, budget):
        assert wanted["app.kubernetes.io/component"] == component
        assert all(wanted.items() <= each.items() for each in labels)


def test_only_one_thing_sets_the_number_of_proxies(overlay: str) -> None:
    """Where an autoscaler does, applying the overlay again must not set it back."""
    objects = render(overlay)
    (proxies,) = [each for each in objects if each["kind"] == "Deployment"]
    scalers = [each for each in objects if each["kind"] == "HorizontalPodAutoscaler"]

    assert ("replicas" in proxies["spec"]) is not bool(scalers)
    assert [each["spec"]["scaleTargetRef"]["name"] for each in scalers] == ["proxy"] * (overlay != "cpu")
