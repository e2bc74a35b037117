"""One pod as a process: the container's arguments, environment, user, mounts and probes; its end as kubelet brings it about."""

import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from baton.deploy.forkserver import Child, ForkServer
from tests.support.composed.composition import RESOLV, RUN
from tests.support.composed.confinement import Confinement
from tests.support.composed.image import image_entrypoint, image_environment, image_folder
from tests.support.composed.network import Seat
from tests.support.composed.resolver import Resolver
from tests.support.kubernetes.connections import Accepted, accepted
from tests.support.kubernetes.policies import Place
from tests.support.kubernetes.probes import Prober
from tests.support.kubernetes.render import Object
from tests.support.kubernetes.volumes import Secrets, memory_bytes, mounts

ENTRYPOINT: Final = ["tini", "--", "baton"]  # here the fork server is the init process, and runs our command itself
BY_KUBERNETES: Final = {  # what every pod gets, also without service links
    "KUBERNETES_SERVICE_HOST": "198.18.35.254",
    "KUBERNETES_SERVICE_PORT": "443",
    "KUBERNETES_PORT": "tcp://198.18.35.254:443",
}


HOSTS: Final = "/etc/hosts"
LOCALHOST: Final = "127.0.0.1\tlocalhost\n"


class PodError(Exception):
    """A pod did what it should not; the message holds the end of its log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What pods of one cluster have in common."""

    forkserver: ForkServer  # makes the processes
    images: Mapping[str, Mapping[str, Any]]  # name → the service of the compose file that builds it
    links: Mapping[str, str]  # what images have as links: path → target
    shared: Mapping[str, Path]  # what is not in the manifests: path → folder here that all may write to
    objects: Sequence[Object]  # of the overlay
    secrets: Secrets  # those that were made by hand
    names: Mapping[str, Sequence[str]]  # of the name server
    resolv_conf: str


class Pod:
    """A pod from its start to its end."""

    def __init__(self, name: str, template: Object, seat: Seat, folder: Path) -> None:
        """Take a pod's name and template, where it is in the network, and an empty folder for its volumes and log."""
        self.name = name
        self.place = Place.of(template)
        self.seat = seat
        (self.address,) = seat.addresses.values()
        self._spec: Object = template["spec"]
        (self._container,) = self._spec["containers"]
        self._template = template
        self._folder = folder
        self._log = folder / "log"
        self._prober = Prober(self._container, self.address)
        self._undo = ExitStack()
        self._child: Child | None = None  # not started yet
        self.terminating = False

    def start(self, around: Surroundings) -> None:
        """Start the container."""
        image = around.images[self._container["image"].partition(":")[0]]
        security = self._spec["securityContext"]
        confinement = Confinement(
            user=security["runAsUser"],
            group=security["runAsGroup"],
            groups=[security["fsGroup"]],
            host=self.name,
            folder=image_folder(image),
            memory_bytes=memory_bytes(self._template),
        )
        volumes = mounts(self._template, around.objects, around.secrets, self._folder / "volumes")
        for path, text in {RESOLV: around.resolv_conf, HOSTS: f"{LOCALHOST}{self.address}\t{self.name}\n"}.items():
            file = self._folder / Path(path).name
            file.write_text(text)
            volumes[path] = (str(file), False)
        volumes |= {path: (str(folder), True) for path, folder in around.shared.items()}
        self._undo.enter_context(Resolver(self.seat.space, around.names))
        self._child = around.forkserver.spawn(
            RUN,
            kwargs={"argv": self._argv(image), "volumes": volumes, "links": dict(around.links)}
            | {"confinement": asdict(confinement)},
            env={"HOME": image_folder(image), "HOSTNAME": self.name}
            | BY_KUBERNETES
            | image_environment(image)
            | self._environ(),
            log=self._log,
            netns=self.seat.space,
        )
        self._prober.start()

    @property
    def component(self) -> str:
        """What it is: proxy, prefill, decode."""
        return self.place.labels["app.kubernetes.io/component"]

    @property
    def ready(self) -> bool:
        """Whether it belongs into its Services."""
        return self._prober.ready and not self.terminating

    def accepted(self) -> set[Accepted]:
        """Who is connected to it now."""
        return accepted(self._child.pid) if self._child else set()

    def problem(self) -> str:
        """Say what kubelet would restart it for."""
        if self._child and self._child.poll() is not None and not self.terminating:
            return f"{self.name} ended with {self._child.returncode}:\n{self.tail()}"
        return f"{self.name}: {self._prober.failed}\n{self.tail()}" if self._prober.failed else ""

    def end(self) -> None:
        """Take it out of its Services, wait as its hook does, SIGTERM; it has what is left of its grace.

        Raises:
            PodError: it would be killed, or its status is not 0.
        """
        self.terminating = True
        deadline_s = time.monotonic() + self._spec["terminationGracePeriodSeconds"]
        time.sleep(self._container["lifecycle"]["preStop"]["sleep"]["seconds"])
        child = self._started()
        if child.poll() is not None:
            raise PodError(f"{self.name} ended before SIGTERM\n{self.tail()}")
        child.terminate()
        try:
            status = child.wait(deadline_s - time.monotonic())
        except subprocess.TimeoutExpired:
            raise PodError(f"{self.name} outlasts its grace\n{self.tail()}") from None
        if status != 0:
            raise PodError(f"{self.name} ended with {status}\n{self.tail()}")

    def close(self) -> None:
        """Leave nothing of it behind."""
        self.terminating = True
        if self._child is not None:
            self._prober.stop()
            self._child.kill()
            with suppress(subprocess.TimeoutExpired):
                self._child.wait(5)
        self._undo.close()

    def status(self) -> str:
        """What the kernel says of its process."""
        return Path(f"/proc/{self._started().pid}/status").read_text()

    def root(self) -> Path:
        """Its root file system, as seen from here."""
        return Path(f"/proc/{self._started().pid}/root")

    def gone(self) -> bool:
        """Whether no process of it is left."""
        return not Path(f"/proc/{self._started().pid}").exists()

    def tail(self) -> str:
        """The end of its log."""
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-30:])

    def _started(self) -> Child:
        assert self._child is not None
        return self._child

    def _argv(self, image: Mapping[str, Any]) -> list[str]:
        command = [*self._container.get("command", image_entrypoint(image)), *self._container.get("args", ())]
        assert command[: len(ENTRYPOINT)] == ENTRYPOINT, f"{command} is not our command under an init process"
        return command[len(ENTRYPOINT) :]

    def _environ(self) -> dict[str, str]:
        return {each["name"]: self._value(each) for each in self._container.get("env", ())}

    def _value(self, variable: Object) -> str:
        if "value" in variable:
            return str(variable["value"])
        resource: str = variable["valueFrom"]["resourceFieldRef"]["resource"]  # no other is used on CPUs
        return str(self._container["resources"]["limits"][resource.removeprefix("limits.")])
