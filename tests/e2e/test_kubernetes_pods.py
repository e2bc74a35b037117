"""The pods of the overlay `cpu` as processes: they serve, and a rolling restart of all of them is noticed by nobody.

Arguments, environment, user, mounts, read-only root, probes, hooks and grace are those of the rendered manifests. But for the
hooks: this cluster's name server keeps answers for a second and not for 30, and proxies ask it every 2 s, so they are shorter.
"""

import asyncio
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import httpx
import pytest
import yaml

from baton.contracts.configuration.schema import ProxyConfig
from baton.contracts.http import DISAGGREGATED
from baton.deploy.embedded_model import WEIGHTS
from baton.deploy.forkserver import ForkServer
from benchmarks.overlap.network import NetworkError
from tests.e2e.load import Load, under_load
from tests.support.compose import compose_files, rendered
from tests.support.composed.network import FOLDER as NETWORKS
from tests.support.composed.network import PREFIX
from tests.support.kubernetes.cluster import LOOK_S, Cluster, Connection
from tests.support.kubernetes.pod import Pod
from tests.support.kubernetes.policies import Place, let_in
from tests.support.kubernetes.render import FOLDER, Object, named, render, render_folder

pytestmark = [pytest.mark.exhaustive, pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(400)]

KEPT_S: Final = 30  # how long kubeadm's CoreDNS keeps an answer
KEPT_HERE_S: Final = 1
INTERVAL_S: Final = 2  # of the proxies here
SOONER_S: Final = (
    KEPT_S - KEPT_HERE_S + int(ProxyConfig().dns_interval_s) - INTERVAL_S
)  # the second look-up's 3 s are slack
PROXY_HOOK_S: Final = 2  # a Service of ours leads nowhere else at once
HOOK: Final = "lifecycle/preStop/sleep/seconds"
KEY: Final = "a-key-of-a-client-of-this-cluster"
WITH_KEY: Final = {"Authorization": f"Bearer {KEY}"}
SECRETS: Final = {
    "baton-cluster-secret": {"secret": "a cluster secret for a test"},
    "baton-admin-token": {"token": "an admin token for a test"},
    "baton-api-keys": {"keys.yaml": f"keys:\n  team-a:\n    key: {KEY}\n"},
}
CLIENTS: Final = 3
PAUSE_S: Final = 0.5  # each rests for: this is about what goes wrong, not how fast it goes
NODES: Final = ("prefill", "decode")
USER: Final = 10001
VLLM_CACHE: Final = "/opt/vllm-cache"
COMPLETION: Final = {"model": "baton-embedded", "prompt": "The harbour " * 40, "max_tokens": 8}


def patched(workload: str, operation: str, path: str, value: object) -> Object:
    """Return a patch of a workload's container."""
    patch = {"op": operation, "path": f"/spec/template/spec/containers/0/{path}", "value": value}
    return {"target": {"kind": "StatefulSet|Deployment", "name": workload}, "patch": yaml.safe_dump([patch])}


@pytest.fixture
def objects(tmp_path: Path) -> list[Object]:
    """An overlay over `cpu`, as docs/kubernetes.md tells users to make theirs: two decode nodes, shorter hooks."""
    asking = patched("proxy", "add", "env", [{"name": "BATON_PROXY_DNS_INTERVAL_S", "value": str(INTERVAL_S)}])
    folder = (tmp_path / "overlay").resolve()
    folder.mkdir()
    hooks_s = {"proxy": PROXY_HOOK_S}
    for name in NODES:
        (container,) = named(render("cpu"), "StatefulSet", name)["spec"]["template"]["spec"]["containers"]
        hooks_s[name] = container["lifecycle"]["preStop"]["sleep"]["seconds"] - SOONER_S
    kustomization = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [os.path.relpath(FOLDER / "overlays" / "cpu", folder)],
        "replicas": [{"name": "decode", "count": 2}],
        "patches": [patched(name, "replace", HOOK, seconds) for name, seconds in hooks_s.items()] + [asking],
    }
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
    return render_folder(folder)


@pytest.fixture
def vllm_cache(tmp_path: Path) -> Path:
    """What vLLM keeps of model classes: a new pod finds it out anew, in 8 s of a core, which six of them need not do here."""
    folder = tmp_path / "vllm"
    known = Path.home() / ".cache" / "vllm" / "modelinfos"
    if known.is_dir():
        shutil.copytree(known, folder / "modelinfos")
    (folder / "modelinfos").mkdir(parents=True, exist_ok=True)
    for each in (folder, folder / "modelinfos"):
        each.chmod(0o777)  # whoever a pod is
    return folder


@pytest.fixture
def cluster(objects: list[Object], vllm_cache: Path, tmp_path: Path) -> Iterator[Cluster]:
    """All pods are ready."""
    services = rendered(compose_files())["services"].values()
    images = {each["image"].partition(":")[0]: each for each in services}
    environ = {
        "TORCHDYNAMO_DISABLE": "1",
        "VLLM_LOGGING_LEVEL": "WARNING",
        "HF_HUB_OFFLINE": "1",
        "OMP_WAIT_POLICY": "PASSIVE",
        "VLLM_CACHE_ROOT": VLLM_CACHE,
    }
    with ForkServer(log=tmp_path / "zygote.log", environ=dict(os.environ) | environ) as forkserver:
        try:
            made = Cluster(
                objects,
                forkserver=forkserver,
                images=images,
                links={"/opt/embedded-model": str(WEIGHTS)},
                shared={VLLM_CACHE: vllm_cache},
                secrets=SECRETS,
                folder=tmp_path,
                kept_s=KEPT_HERE_S,
            )
            with made:
                made.apply()
                yield made
        except NetworkError as exc:
            pytest.skip(str(exc))
    assert list(NETWORKS.glob(f"{PREFIX}{os.getpid()}-*")) == []


def ask(cluster: Cluster, headers: Mapping[str, str]) -> httpx.Response:
    """Ask for a completion, of the Service."""
    return httpx.post(f"{cluster.url('baton-proxy')}/v1/completions", json=COMPLETION, headers=headers, timeout=60)


def must_be_confined(pod: Pod) -> None:
    """It has the user of the manifest, no capability, and a root that cannot be written to."""
    status = pod.status()

    assert f"Uid:\t{USER}\t{USER}\t{USER}\t{USER}\n" in status
    assert "CapEff:\t0000000000000000\n" in status
    assert "CapBnd:\t0000000000000000\n" in status
    assert "NoNewPrivs:\t1\n" in status
    with pytest.raises(OSError, match="Read-only file system"):
        (pod.root() / "opt" / "file").touch()


def must_be_let_in(seen: set[Connection], places: Mapping[str, Place], objects: list[Object]) -> None:
    """The hand-over's connections were there, and none that a policy forbids."""
    pairs = {(each.source, each.target) for each in seen}
    refused = [each for each in seen if not let_in(objects, places[each.source], places[each.target], each.port)]

    assert {("proxy", "prefill"), ("proxy", "decode"), ("decode", "prefill"), ("prefill", "decode")} <= pairs
    assert refused == []


def roll_everything(cluster: Cluster, load: Load, seen: set[Connection]) -> None:
    """`kubectl rollout restart` of all three, at once; then some more requests."""
    with ThreadPoolExecutor() as pool:
        rolled = [pool.submit(cluster.restart_set, name) for name in NODES]
        rolled.append(pool.submit(cluster.restart_deployment, "proxy"))
        while not all(each.done() for each in rolled):
            seen |= cluster.connections()
            time.sleep(LOOK_S)
        for each in rolled:
            each.result()
    goal = load.answered + 3 * CLIENTS
    cluster.wait(lambda: load.answered >= goal or bool(load.problems), "requests go on")


def test_pods_serve_and_a_rolling_restart_loses_no_request(cluster: Cluster, objects: list[Object]) -> None:
    """Proxies, prefill node and decode nodes are replaced under load: every stream is whole, every pod ends within its grace.

    Nobody connects to anybody whom a NetworkPolicy would keep away: KV moves, and no plugin would have stopped it.
    """
    before = {name: cluster.pods(name) for name in ("proxy", *NODES)}
    answer, refused = ask(cluster, WITH_KEY), ask(cluster, {})
    metrics = [
        httpx.get(f"http://{pod.address}:{pod.place.ports['http']}/metrics").text for (pod, *_) in before.values()
    ]
    for pods in before.values():
        must_be_confined(pods[0])
    load = Load(lambda: cluster.url("baton-proxy"), WITH_KEY, clients=CLIENTS, keep_connections=False, pause_s=PAUSE_S)
    seen: set[Connection] = set()

    asyncio.run(under_load(load, lambda: roll_everything(cluster, load, seen)))

    print(f"{load.answered} requests: {dict(load.paths)}; {sorted(seen)}")
    after = ask(cluster, WITH_KEY)
    assert answer.headers["x-baton-path"] == after.headers["x-baton-path"] == DISAGGREGATED
    assert refused.status_code == 401
    assert all("\nbaton_" in each for each in metrics)
    assert load.problems == []
    assert load.paths[DISAGGREGATED] > 0
    for name, pods in before.items():
        assert not set(pods) & set(cluster.pods(name))
        assert [pod.name for pod in pods if not pod.gone()] == []
    must_be_let_in(seen, {name: pods[0].place for name, pods in before.items()}, objects)
