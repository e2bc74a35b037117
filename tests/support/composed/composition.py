"""Starts, scales and stops the services of a compose file.

Commands, environments, volumes, networks and health checks are read from it, the variables of images from the Dockerfile.
"""

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from baton.deploy.forkserver import Child, ForkServer
from tests.support.compose import ROOT, seconds
from tests.support.composed.image import image_environment
from tests.support.composed.network import Networks, Seat
from tests.support.composed.resolver import RESOLV_CONF, Resolver

RUN: Final = "tests.support.composed.inside:run"
RESOLV: Final = "/etc/resolv.conf"
HEALTHY_WITHIN_S: Final = 120.0
LOOK_S: Final = 0.5  # each look is a process of its own


class CompositionError(Exception):
    """A container ended, or did not become healthy; the message holds the end of its log."""


@dataclass(slots=True, kw_only=True)
class Container:
    """One replica of a service."""

    name: str
    service: str
    seat: Seat | None  # None: it has no network
    child: Child
    log: Path
    names: ExitStack  # its name server

    def tail(self) -> str:
        """The end of its log."""
        lines = self.log.read_text(errors="replace").splitlines()[-30:]
        return f"{self.name} ended with {self.child.returncode}:\n" + "\n".join(lines)


class Composition:
    """What `docker compose up`, `--scale` and `down` do."""

    def __init__(
        self, document: Mapping[str, Any], forkserver: ForkServer, folder: Path, links: Mapping[str, str]
    ) -> None:
        """Take a rendered compose file.

        Args:
            document: as docker-compose renders it.
            forkserver: makes the processes.
            folder: for volumes and logs.
            links: what the image has as links: path → target.
        """
        self._services: Mapping[str, Any] = document["services"]
        self._forkserver = forkserver
        self._folder = folder
        self._links = dict(links)
        self._networks = Networks(list(document["networks"]), clients="front")
        self._addresses: dict[str, list[str]] = {}  # service → where its containers are, for the name servers
        self._containers: dict[str, list[Container]] = {}
        self._resolv = folder / "resolv.conf"

    def __enter__(self) -> Self:
        self._resolv.write_text(RESOLV_CONF)
        self._networks.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        for container in [each for replicas in self._containers.values() for each in replicas]:
            container.child.kill()
            with suppress(subprocess.TimeoutExpired):
                container.child.wait(5)
            container.names.close()
        self._networks.__exit__()

    def up(self) -> None:
        """Start one of each service, in the order of what they depend on."""
        for service in self._ordered():
            container = self._start(service)
            if self._must_end(service):
                status = container.child.wait(HEALTHY_WITHIN_S)
                if status != 0:
                    raise CompositionError(container.tail())
                self._take_away(container)
        for service in self._containers:
            self.wait_healthy(service)

    def scale(self, service: str, replicas: int) -> None:
        """Start more containers of a service and wait until they are healthy, or stop its newest ones."""
        while len(self._containers[service]) < replicas:
            self._start(service)
        self.wait_healthy(service)
        surplus = self._containers[service][replicas:]
        for container in reversed(surplus):
            self.stop(container)

    def stop(self, container: Container) -> None:
        """SIGTERM, as long as the stop grace lasts; its name goes when it has ended."""
        container.child.terminate()
        try:
            status = container.child.wait(seconds(self._services[container.service]["stop_grace_period"]))
        except subprocess.TimeoutExpired:
            raise CompositionError(f"{container.name} outlasts its stop grace\n{container.tail()}") from None
        if status != 0:
            raise CompositionError(container.tail())
        self._take_away(container)

    def containers(self, service: str) -> Sequence[Container]:
        """The replicas, the oldest first."""
        return tuple(self._containers[service])

    def url(self, service: str, network: str) -> str:
        """Where a service's first container is reached in a network."""
        port = {"proxy": "8000", "prefill": "8100", "decode": "8200"}[service]
        return f"http://{self._containers[service][0].seat.addresses[network]}:{port}"  # type: ignore[union-attr]

    def volume(self, name: str) -> Path:
        """Return the folder that is a named volume."""
        folder = self._folder / "volumes" / name
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def wait_healthy(self, service: str) -> None:
        """Run the health check in each container until it succeeds."""
        deadline_s = time.monotonic() + HEALTHY_WITHIN_S
        for container in self._containers[service]:
            while (problem := self._problem(container)) != "":
                if container.child.poll() is not None:
                    raise CompositionError(container.tail())
                if time.monotonic() > deadline_s:
                    raise CompositionError(f"{container.name} is not healthy: {problem}\n{container.tail()}")
                time.sleep(LOOK_S)

    def _start(self, service: str) -> Container:
        definition = self._services[service]
        replicas = self._containers.setdefault(service, [])
        number = int(replicas[-1].name.rpartition("-")[2]) + 1 if replicas else 1
        name, log = f"{service}-{number}", self._folder / f"{service}-{number}.log"
        seat, names = None, ExitStack()
        if definition.get("network_mode") != "none":
            seat = self._networks.add(name, list(definition["networks"]))
            names.enter_context(Resolver(seat.space, self._addresses))
        child = self._forkserver.spawn(
            RUN,
            kwargs={"argv": definition["command"], "volumes": self._volumes(definition), "links": self._links},
            env={**image_environment(definition), **definition.get("environment", {})},
            log=log,
            netns=seat.space if seat else "",
        )
        container = Container(name=name, service=service, seat=seat, child=child, log=log, names=names)
        replicas.append(container)
        self._name(service)
        return container

    def _take_away(self, container: Container) -> None:
        self._containers[container.service].remove(container)
        self._name(container.service)
        container.names.close()
        if container.seat is not None:
            self._networks.remove(container.seat)

    def _name(self, service: str) -> None:
        seats = [each.seat for each in self._containers[service] if each.seat is not None]
        self._addresses[service] = [seat.addresses["nodes"] for seat in seats]

    def _volumes(self, definition: Mapping[str, Any]) -> dict[str, tuple[str, bool]]:
        found = {RESOLV: (str(self._resolv), False)}
        for volume in definition.get("volumes", []):
            found[volume["target"]] = (str(self.volume(volume["source"])), not volume.get("read_only", False))
        return found

    def _problem(self, container: Container) -> str:
        """Run the health check as the engine does, beside the process; return what it says against it."""
        definition = self._services[container.service]
        _, program, *argv = definition["healthcheck"]["test"]
        assert program == "baton"
        assert container.seat is not None
        done = subprocess.run(
            ["ip", "netns", "exec", container.seat.space, sys.executable, "-m", "baton.deploy.cli", *argv],
            env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), **definition["environment"]},
            cwd=self._folder,
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        return "" if done.returncode == 0 else done.stderr or f"status {done.returncode}"

    def _must_end(self, service: str) -> bool:
        return any(
            needed.get(service, {}).get("condition") == "service_completed_successfully"
            for definition in self._services.values()
            if (needed := definition.get("depends_on", {}))
        )

    def _ordered(self) -> Iterator[str]:
        left = dict(self._services)
        while left:
            ready = [name for name, each in left.items() if not set(each.get("depends_on", {})) & left.keys()]
            assert ready, "services wait for each other"
            for name in ready:
                del left[name]
                yield name
