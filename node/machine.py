"""What this process finds where it runs: limits, RDMA cards, and which machine it is. Read-only."""

import re
import resource
from pathlib import Path
from typing import Final

from baton.contracts.probe import UNLIMITED, Machine, RdmaDevice

RDMA: Final = Path("/sys/class/infiniband")
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_NETWORK: Final = Path("/proc/self/ns/net")
PROCESS: Final = Path("/proc/self")
_EFFECTIVE: Final = re.compile(r"^CapEff:\s*([0-9a-f]+)$", re.MULTILINE)
_IPC_LOCK: Final = 14  # linux/capability.h
_INITIAL_USERS: Final = ["0", "0", "4294967295"]
_ACTIVE: Final = "ACTIVE"  # in a port's `state`, "4: ACTIVE"


def machine(data_host: str, protocol: str) -> Machine:
    """Describe the machine of a node whose transfer engine is at `data_host`."""
    return Machine(
        name=_name(),
        data_host=data_host,
        protocol=protocol,
        open_files=_plain(resource.getrlimit(resource.RLIMIT_NOFILE)[1]),  # vLLM and the proxy raise the soft limit
        locked_bytes=locked_bytes(),
        rdma_devices=rdma_devices(),
    )


def locked_bytes(process: Path = PROCESS) -> int:
    """Return how much memory this process may pin: the soft limit, which is not raised, unless it has IPC_LOCK.

    The kernel asks for that capability in the initial user namespace alone (`ib_umem_get`), and in effect: in the
    bounding set, which is all that Kubernetes' `add` gives to a user other than root, it does nothing.
    """
    found = _EFFECTIVE.search(_text(process / "status"))
    may_all = found is not None and bool(int(found[1], 16) >> _IPC_LOCK & 1)
    if may_all and _text(process / "uid_map").split() == _INITIAL_USERS:
        return UNLIMITED
    return _plain(resource.getrlimit(resource.RLIMIT_MEMLOCK)[0])


def rdma_devices(folder: Path = RDMA) -> list[RdmaDevice]:
    if not folder.is_dir():
        return []
    return [
        RdmaDevice(name=card.name, active=any(_ACTIVE in _text(state) for state in card.glob("ports/*/state")))
        for card in sorted(folder.iterdir())
    ]


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
