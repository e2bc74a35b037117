"""Judges a machine by what a process found on it. Pure."""

from collections.abc import Iterator
from typing import Final

from baton.contracts.probe import UNLIMITED, Machine
from baton.deploy.doctor.catalogue import Finding

MIN_OPEN_FILES: Final = 8192
RDMA: Final = "rdma"


def diagnose(machine: Machine, where: str, kv_bytes: int | None = None) -> Iterator[Finding]:
    """Yield what is wrong.

    Args:
        machine: What was found.
        where: Whose machine it is.
        kv_bytes: Size of the node's KV cache; None if it is not known yet.
    """
    if machine.open_files != UNLIMITED and machine.open_files < MIN_OPEN_FILES:
        what = f"a process may open {machine.open_files} files; {MIN_OPEN_FILES} is the least that nodes and proxy want"
        yield Finding(code="open-files", where=where, what=what)
    if machine.protocol == RDMA:
        yield from _diagnose_rdma(machine, where, kv_bytes)


def _diagnose_rdma(machine: Machine, where: str, kv_bytes: int | None) -> Iterator[Finding]:
    names = ", ".join(device.name for device in machine.rdma_devices)
    if not names:
        yield Finding(code="rdma-device", where=where, what="the transport is RDMA and there is no RDMA card")
    elif not any(device.active for device in machine.rdma_devices):
        yield Finding(code="rdma-device", where=where, what=f"no port of the RDMA cards ({names}) is active")
    if machine.locked_bytes != UNLIMITED and (kv_bytes is None or machine.locked_bytes < kv_bytes):
        of = "the KV cache" if kv_bytes is None else f"the {kv_bytes} bytes of KV cache"
        what = f"a process may pin {machine.locked_bytes} bytes of memory, and RDMA pins {of}"
        yield Finding(code="locked-memory", where=where, what=what)
