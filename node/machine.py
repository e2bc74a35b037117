"""What this process finds where it runs: limits, RDMA cards, and which machine it is. Read-only."""

import resource
from pathlib import Path
from typing import Final

from contracts.probe import UNLIMITED, Machine, RdmaDevice

RDMA: Final = Path("/sys/class/infiniband")
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_STATUS: Final = Path("/proc/self/status")
_CAP_IPC_LOCK: Final = 14  # linux/capability.h
_NETWORK: Final = Path("/proc/self/ns/net")
_ACTIVE: Final = "ACTIVE"  # in a port's `state`, "4: ACTIVE"


def machine(data_host: str, protocol: str) -> Machine:
    """Describe the machine of a node whose transfer engine is at `data_host`."""
    return Machine(
        name=_name(),
        data_host=data_host,
        protocol=protocol,
        open_files=_plain(resource.getrlimit(resource.RLIMIT_NOFILE)[1]),  # vLLM and the proxy raise the soft limit
        locked_bytes=locked_bytes(_text(_STATUS), resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]),  # nobody raises it
        rdma_devices=rdma_devices(),
    )


def locked_bytes(status: str, limit: int) -> int:
    """Return what a process may pin, from `/proc/<pid>/status` and its limit, which IPC_LOCK lifts where it is in effect.

    In the bounding set alone it does nothing: that is all that Kubernetes' `add` gives to a user other than root.
    """
    effective = next((line.split()[1] for line in status.splitlines() if line.startswith("CapEff:")), "0")
    return UNLIMITED if int(effective, 16) >> _CAP_IPC_LOCK & 1 else _plain(limit)


def rdma_devices(folder: Path = RDMA) -> list[RdmaDevice]:
    """Return the RDMA cards that this process sees."""
    if not folder.is_dir():
        return []
    return [RdmaDevice(name=card.name, active=_is_active(card)) for card in sorted(folder.iterdir())]


def _is_active(card: Path) -> bool:
    return any(_ACTIVE in _text(state) for state in card.glob("ports/*/state"))


def _name() -> str:
    """Name the boot of the kernel and the network namespace."""
    try:
        network = str(_NETWORK.readlink())
    except OSError:
        network = ""
    return f"{_text(_BOOT_ID)} {network}"


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def _plain(limit: int) -> int:
    return UNLIMITED if limit == resource.RLIM_INFINITY else limit
