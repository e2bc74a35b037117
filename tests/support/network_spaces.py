"""A network of hosts that are namespaces: a bridge in a namespace that stands for the switch, each host in one of its own.

Addresses are of 198.18.0.0/15 (RFC 2544, for benchmarks). This process is in the network too.
"""

import itertools
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.overlap.network import DEVICES, FOLDER, Namespaces, run

PREFIX: Final = "baton-hosts-"
SUBNET: Final = "198.18.32"


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    space: str  # the namespace's name
    address: str


class Network(Namespaces):
    def __init__(self, name: str) -> None:
        self._name = name
        self._switch = f"{PREFIX}{os.getpid()}-switch"
        self._here = f"bc{os.getpid()}"  # this process's device
        self._hosts = itertools.count(2)  # 1 is this process

    def add(self, name: str) -> Seat:
        """Make a place for a host."""
        space, host = f"{PREFIX}{os.getpid()}-{name}", next(self._hosts)
        seat = Seat(space=space, address=f"{SUBNET}.{host}")
        run(f"ip netns add {space}")
        run(f"ip -n {space} link set lo up")
        run(f"ip -n {self._switch} link add p{host} type veth peer name eth0 netns {space}")
        run(f"ip -n {self._switch} link set p{host} master {self._name} up")
        run(f"ip -n {space} addr add {seat.address}/24 dev eth0")
        run(f"ip -n {space} link set eth0 up")
        return seat

    def _make(self) -> None:
        run(f"ip netns add {self._switch}")
        run(f"ip -n {self._switch} link add {self._name} type bridge")
        run(f"ip -n {self._switch} link set {self._name} up")
        here = self._here
        run(f"ip link add {here} type veth peer name clients netns {self._switch}")
        run(f"ip -n {self._switch} link set clients master {self._name} up")
        run(f"ip addr add {SUBNET}.1/24 dev {here}")
        run(f"ip link set {here} up")

    def _remove(self) -> None:
        if (DEVICES / self._here).exists():  # at once: with its namespace it would go some time later
            run(f"ip link delete {self._here}")
        for space in FOLDER.glob(f"{PREFIX}{os.getpid()}-*"):
            run(f"ip netns delete {space.name}")

    def _remove_orphans(self) -> None:
        for space in FOLDER.glob(f"{PREFIX}*"):
            maker = space.name.removeprefix(PREFIX).partition("-")[0]
            if not Path(f"/proc/{maker}").exists():
                run(f"ip netns delete {space.name}")
