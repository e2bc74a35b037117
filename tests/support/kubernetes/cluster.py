"""What a cluster does with an overlay's workloads and Services, on this machine: pods as processes, rolled one by one.

No scheduler, no network policies, no seccomp profile, no limits of memory.
"""

import random
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

from baton.deploy.forkserver import ForkServer
from tests.support.composed.network import PODS_SUBNET, Networks
from tests.support.kubernetes.names import Names, resolv_conf
from tests.support.kubernetes.pod import Pod, PodError, Surroundings
from tests.support.kubernetes.render import Object, named
from tests.support.kubernetes.volumes import Secrets

NETWORK: Final = "pods"
READY_WITHIN_S: Final = 180.0
LOOK_S: Final = 0.1


class Connection(NamedTuple):
    """Between two pods, named by what they are."""

    source: str
    target: str
    port: int


class Cluster:
    """Made in `with`; on leaving nothing runs any more."""

    def __init__(
        self,
        objects: Sequence[Object],
        *,
        forkserver: ForkServer,
        images: Mapping[str, Mapping[str, Any]],
        links: Mapping[str, str],
        shared: Mapping[str, Path],
        secrets: Secrets,
        folder: Path,
        kept_s: float,
    ) -> None:
        """Take what would be applied; the rest is explained at `Surroundings`.

        Args:
            objects: of an overlay.
            forkserver: makes the processes.
            images: what builds them.
            links: what images have as links.
            shared: what pods share here.
            secrets: those of the namespace.
            folder: for volumes and logs.
            kept_s: how long the name server keeps an answer.
        """
        self._objects = tuple(objects)
        self._folder = folder
        self._networks = Networks([NETWORK], clients=NETWORK, subnets=PODS_SUBNET)
        services = [each for each in self._objects if each["kind"] == "Service"]
        (namespace,) = {each["metadata"]["namespace"] for each in services}
        headless = {
            each["metadata"]["name"]: partial(self._addresses, each)
            for each in services
            if each["spec"].get("clusterIP") == "None"
        }
        self._around = Surroundings(
            forkserver=forkserver,
            images=images,
            links=links,
            shared=shared,
            objects=self._objects,
            secrets=secrets,
            names=Names(headless, namespace, kept_s),
            resolv_conf=resolv_conf(namespace),
        )
        self._pods: dict[str, list[Pod]] = {}  # workload → its pods, the oldest first
        self._made: list[Pod] = []
        self._undo = ExitStack()
        self._began_s = time.monotonic()

    def __enter__(self) -> Self:
        self._undo.enter_context(self._networks)
        return self

    def __exit__(self, *_: object) -> None:
        self._undo.close()

    def apply(self) -> None:
        """Start all pods of all workloads, in no order, and wait until all are ready."""
        for workload in self._objects:
            if workload["kind"] in ("StatefulSet", "Deployment"):
                name = workload["metadata"]["name"]
                self._pods[name] = []
                for number in range(workload["spec"]["replicas"]):
                    self._start(workload, f"{name}-{number}")
        self.wait(lambda: all(pod.ready for pods in self._pods.values() for pod in pods), "all pods are ready")

    def pods(self, workload: str) -> Sequence[Pod]:
        """The pods of a workload that are not told to end."""
        return tuple(self._pods[workload])

    def url(self, service: str) -> str:
        """Where a Service leads a new connection."""
        found = named(self._objects, "Service", service)
        pod = random.choice(self._behind(found))
        return f"http://{pod.address}:{pod.place.ports[found['spec']['ports'][0]['targetPort']]}"

    def connections(self) -> set[Connection]:
        """Which pods are connected to which others now."""
        made = list(self._made)
        names = {pod.address: pod.component for pod in made}
        return {
            Connection(names[found.source], pod.component, found.port)
            for pod in made
            for found in pod.accepted()
            if found.source in names and found.source != pod.address
        }

    def restart_set(self, name: str) -> None:
        """Roll a StatefulSet: the highest number first, each ready before the next one goes."""
        workload = named(self._objects, "StatefulSet", name)
        for old in reversed(self.pods(name)):
            self._end(old)
            self._pods[name].remove(old)
            new = self._start(workload, old.name)
            self.wait(lambda new=new: new.ready, f"{new.name} is ready again")  # type: ignore[misc]

    def restart_deployment(self, name: str) -> None:
        """Roll a Deployment with a surge of one: a new pod is ready before an old one is told to end."""
        workload = named(self._objects, "Deployment", name)
        with ThreadPoolExecutor() as pool:
            ended: list[Future[None]] = []
            for number, old in enumerate(self.pods(name)):
                new = self._start(workload, f"{name}-new-{number}")
                self.wait(lambda new=new: new.ready, f"{new.name} is ready")  # type: ignore[misc]
                self._pods[name].remove(old)
                ended.append(pool.submit(self._end, old))
            for each in ended:
                each.result()

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        """Poll until something holds, or a pod fails."""
        deadline_s = time.monotonic() + READY_WITHIN_S
        while not condition():
            self.check()
            if time.monotonic() > deadline_s:
                raise PodError(f"not within {READY_WITHIN_S:g} s: {what}\n" + "\n".join(self._unready()))
            time.sleep(LOOK_S)
        print(f"{time.monotonic() - self._began_s:5.1f} s  {what}")

    def check(self) -> None:
        """Look for pods that kubelet would restart.

        Raises:
            PodError: there is one.
        """
        for pod in (pod for pods in list(self._pods.values()) for pod in list(pods)):
            if problem := pod.problem():
                raise PodError(problem)

    def _start(self, workload: Object, name: str) -> Pod:
        seat = self._networks.add(f"{name}-{len(self._made)}", [NETWORK])
        folder = self._folder / f"{name}-{len(self._made)}"
        folder.mkdir()
        pod = Pod(name, workload["spec"]["template"], seat, folder)
        self._made.append(pod)
        self._undo.callback(pod.close)
        pod.start(self._around)
        self._pods[workload["metadata"]["name"]].append(pod)
        return pod

    def _end(self, pod: Pod) -> None:
        pod.end()
        print(f"{time.monotonic() - self._began_s:5.1f} s  {pod.name} has ended")

    def _behind(self, service: Object) -> list[Pod]:
        """Return the ready pods that a Service's labels select."""
        wanted = service["spec"]["selector"].items()
        pods = [pod for pods in list(self._pods.values()) for pod in list(pods)]
        return [pod for pod in pods if pod.ready and wanted <= pod.place.labels.items()]

    def _addresses(self, service: Object) -> list[str]:
        return [pod.address for pod in self._behind(service)]

    def _unready(self) -> list[str]:
        return [f"{pod.name}:\n{pod.tail()}" for pods in self._pods.values() for pod in pods if not pod.ready]
