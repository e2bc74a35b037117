"""Two network namespaces, as if on two machines.

    here ──── http, unthrottled ────► prefill ═══ data, throttled ═══► decode ◄── http, unthrottled ── here

The process that runs this is the client, in the namespace that it is in. Namespaces carry the process id of their
maker, so that those of a maker that was killed are found and removed by the next one.
"""

import os
import re
import subprocess
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Final, Self

from benchmarks.harness import BenchError

PREFILL_HTTP: Final = "198.18.0.2"  # RFC 2544: 198.18.0.0/15 is reserved for benchmarks
DECODE_HTTP: Final = "198.18.0.6"
PREFILL_DATA: Final = "198.18.1.1"
DECODE_DATA: Final = "198.18.1.2"
DATA_DEVICE: Final = "data"  # its name in both namespaces

_HTTP_DEVICE: Final = "http"
_CLIENT: Final = {PREFILL_HTTP: "198.18.0.1", DECODE_HTTP: "198.18.0.5"}
_PREFIX: Final = "baton-overlap-"
FOLDER: Final = Path("/run/netns")
DEVICES: Final = Path("/sys/class/net")


class NetworkError(BenchError):
    """The namespaces cannot be had; the message is for the person who asked."""


class Namespaces(ABC):
    """Network namespaces; removed on leaving the `with` block, and with them every device."""

    def __enter__(self) -> Self:
        refuse_unprivileged(os.geteuid())
        self._remove_orphans()
        try:
            self._make()
        except NetworkError:
            self._remove()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._remove()

    @abstractmethod
    def _remove_orphans(self) -> None:
        """Remove what killed processes left behind."""

    @abstractmethod
    def _make(self) -> None: ...

    @abstractmethod
    def _remove(self) -> None: ...


class Network(Namespaces):
    """The namespaces of P and D, joined by the link that is limited."""

    def __init__(self) -> None:
        own = f"{_PREFIX}{os.getpid()}"
        self.prefill, self.decode = f"{own}-p", f"{own}-d"

    def throttle(self, mbit_s: int) -> None:
        """Limit the data link in both directions; 0 lifts the limit."""
        for space in (self.prefill, self.decode):
            run(f"tc -n {space} qdisc replace dev {DATA_DEVICE} root pfifo limit 1000")  # forget the old bucket
            if mbit_s:
                # A smaller burst would cost 0.65 of a core at 1 Gbit/s and hide the overlap.
                bucket = f"tbf rate {mbit_s}mbit burst 256kb latency 400ms"
                run(f"tc -n {space} qdisc replace dev {DATA_DEVICE} root {bucket}")
            else:
                run(f"tc -n {space} qdisc delete dev {DATA_DEVICE} root")

    def _make(self) -> None:
        for space, address in ((self.prefill, PREFILL_HTTP), (self.decode, DECODE_HTTP)):
            here = _device_of(space)
            run(f"ip netns add {space}")
            run(f"ip -n {space} link set lo up")
            run(f"ip link add {here} type veth peer name {_HTTP_DEVICE} netns {space}")
            run(f"ip addr add {_CLIENT[address]}/30 dev {here}")
            run(f"ip link set {here} up")
            _up(space, _HTTP_DEVICE, address)
        run(f"ip -n {self.prefill} link add {DATA_DEVICE} type veth peer name {DATA_DEVICE} netns {self.decode}")
        _up(self.prefill, DATA_DEVICE, PREFILL_DATA)
        _up(self.decode, DATA_DEVICE, DECODE_DATA)

    def _remove(self) -> None:
        for space in (self.prefill, self.decode):
            if (DEVICES / _device_of(space)).exists():  # at once: with its namespace it would go some time later
                run(f"ip link delete {_device_of(space)}")
            if (FOLDER / space).exists():
                run(f"ip netns delete {space}")

    def _remove_orphans(self) -> None:
        for space in sorted(path.name for path in FOLDER.glob(f"{_PREFIX}*")):
            maker = maker_of(space)
            if maker is None:
                continue
            if Path(f"/proc/{maker}").exists():
                raise NetworkError(f"process {maker} is measuring already; two at once would disturb each other")
            run(f"ip netns delete {space}")


def _device_of(space: str) -> str:
    return f"bo{os.getpid()}{space[-1]}"


def refuse_unprivileged(user: int) -> None:
    if user != 0:
        raise NetworkError(
            "network namespaces can be made by root alone: run this as root, or in a privileged container"
        )


def maker_of(space: str) -> int | None:
    found = re.fullmatch(rf"{_PREFIX}(\d+)-[pd]", space)
    return int(found[1]) if found else None


def sent_bytes(net_dev: str, device: str = DATA_DEVICE) -> int:
    """Return what a device has sent, from the text of `/proc/<pid>/net/dev`, which shows the process's namespace."""
    for line in net_dev.splitlines():
        name, colon, counters = line.partition(":")
        if colon and name.strip() == device:
            return int(counters.split()[8])
    raise NetworkError(f"there is no device {device}")


def _up(space: str, device: str, address: str) -> None:
    run(f"ip -n {space} addr add {address}/30 dev {device}")
    run(f"ip -n {space} link set {device} up")


def run(command: str) -> None:
    """Run a command. Raises `NetworkError`: it failed, or its program is not there."""
    try:
        subprocess.run(command.split(), check=True, capture_output=True, text=True)
    except FileNotFoundError as exc:
        raise NetworkError(f"{exc.filename} is missing: install iproute2") from exc
    except subprocess.CalledProcessError as exc:
        raise NetworkError(f"`{command}` failed: {exc.stderr.strip()}") from exc
