"""What takes a process's rights away: user, capabilities, the way back. For containers as a cluster's manifests describe them."""

import ctypes
import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_CLONE_NEWUTS: Final = 0x04000000  # linux/sched.h
_PDEATHSIG, _DUMPABLE, _CAPBSET_DROP, _NO_NEW_PRIVS = 1, 4, 24, 38  # linux/prctl.h
_SEARCH: Final = 0o001
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Confinement:
    """A container without privileges, with a root that it cannot write to."""

    user: int
    group: int
    groups: Sequence[int]
    host: str  # its name
    folder: str  # where it starts
    memory_bytes: Mapping[str, int]  # path in it → size of a file system in memory


def name_host(name: str) -> None:
    """Have a host name of one's own."""
    if _libc.unshare(_CLONE_NEWUTS) != 0:
        raise OSError(ctypes.get_errno(), "cannot have a host name of one's own")
    os_name = name.encode()
    if _libc.sethostname(os_name, len(os_name)) != 0:
        raise OSError(ctypes.get_errno(), f"cannot be called {name}")


def open_ways(root: Path, folders: Sequence[Path]) -> None:
    """Let every user search what leads to some folders; in the copy on write alone, never in what is mounted below it."""
    device = root.stat().st_dev
    for place in {root / str(parent)[1:] for folder in folders for parent in (folder, *folder.parents)}:
        status = place.stat()
        if status.st_dev == device and not status.st_mode & _SEARCH:
            place.chmod(status.st_mode | _SEARCH)


def confine(wanted: Confinement) -> None:
    """Become the user; no capability, none to be had."""
    for capability in range(int(Path("/proc/sys/kernel/cap_last_cap").read_text()) + 1):
        _prctl(_CAPBSET_DROP, capability)
    os.setgroups(list(wanted.groups))
    os.setresgid(wanted.group, wanted.group, wanted.group)
    os.setresuid(wanted.user, wanted.user, wanted.user)
    _prctl(_NO_NEW_PRIVS, 1)
    _prctl(_PDEATHSIG, signal.SIGKILL)  # forgotten with the old user
    _prctl(_DUMPABLE, 1)  # likewise; else /proc/self would be root's


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}, {value}) failed")
