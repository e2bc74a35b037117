"""Networks of a composition: a bridge each, in a namespace that stands for the switch; every container has its own.

Addresses are of 198.18.0.0/15 (RFC 2544, for benchmarks). This process is in the network that clients come from.
"""

import itertools
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from benchmarks.overlap.network import NetworkError, refuse_unprivileged

PREFIX: Final = "baton-composed-"
FOLDER: Final = Path("/run/netns")
DEVICES: Final = Path("/sys/class/net")
SUBNETS: Final = ("198.18.32", "198.18.33", "198.18.34")  # of compose's tests
PODS_SUBNET: Final = ("198.18.35",)  # another one, so that both can run at once


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """Where a container is."""

    space: str  # the namespace's name
    addresses: Mapping[str, str]  # network → its address there


class Networks:
    """Made in `with`; on leaving all is removed."""

    def __init__(self, names: Sequence[str], clients: str, subnets: Sequence[str] = SUBNETS) -> None:
        """Name the networks; `clients` is that in which this process gets an address."""
        self._subnets = dict(zip(names, subnets, strict=False))
        self._clients = clients
        self._switch = f"{PREFIX}{os.getpid()}-switch"
        self._here = f"bc{os.getpid()}"  # this process's device
        self._hosts = itertools.count(2)  # 1 is this process

    def __enter__(self) -> Self:
        refuse_unprivileged(os.geteuid())
        _remove_orphans()
        try:
            self._make()
        except NetworkError:
            self._remove()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._remove()

    def add(self, name: str, networks: Sequence[str]) -> Seat:
        """Make a place for a container in some networks."""
        space, host = f"{PREFIX}{os.getpid()}-{name}", next(self._hosts)
        run(f"ip netns add {space}")
        run(f"ip -n {space} link set lo up")
        addresses = {network: f"{self._subnets[network]}.{host}" for network in networks}
        for number, (network, address) in enumerate(addresses.items()):
            plug = f"p{host}-{number}"
            run(f"ip -n {self._switch} link add {plug} type veth peer name eth{number} netns {space}")
            run(f"ip -n {self._switch} link set {plug} master {network} up")
            run(f"ip -n {space} addr add {address}/24 dev eth{number}")
            run(f"ip -n {space} link set eth{number} up")
        return Seat(space=space, addresses=addresses)

    def remove(self, seat: Seat) -> None:
        """Take a container's place away."""
        run(f"ip netns delete {seat.space}")

    def _make(self) -> None:
        run(f"ip netns add {self._switch}")
        for name in self._subnets:
            run(f"ip -n {self._switch} link add {name} type bridge")
            run(f"ip -n {self._switch} link set {name} up")
        here = self._here
        run(f"ip link add {here} type veth peer name clients netns {self._switch}")
        run(f"ip -n {self._switch} link set clients master {self._clients} up")
        run(f"ip addr add {self._subnets[self._clients]}.1/24 dev {here}")
        run(f"ip link set {here} up")

    def _remove(self) -> None:
        if (DEVICES / self._here).exists():  # at once: with its namespace it would go some time later
            run(f"ip link delete {self._here}")
        for space in FOLDER.glob(f"{PREFIX}{os.getpid()}-*"):
            run(f"ip netns delete {space.name}")


def run(command: str) -> None:
    """Run a command.

    Raises:
        NetworkError: it failed, or its program is not there.
    """
    try:
        subprocess.run(command.split(), check=True, capture_output=True, text=True)
    except FileNotFoundError as exc:
        raise NetworkError(f"{exc.filename} is missing: install iproute2") from exc
    except subprocess.CalledProcessError as exc:
        raise NetworkError(f"`{command}` failed: {exc.stderr.strip()}") from exc


def _remove_orphans() -> None:
    for space in FOLDER.glob(f"{PREFIX}*"):
        maker = space.name.removeprefix(PREFIX).partition("-")[0]
        if not Path(f"/proc/{maker}").exists():
            run(f"ip netns delete {space.name}")
