"""Has a fork server's child run in a network namespace. Imports little: it is imported in that child."""

import ctypes
import os
from collections.abc import Mapping
from typing import Any

from baton.deploy.zygote import resolve

CLONE_NEWNET = 0x40000000  # linux/sched.h


def target_in(space: str, target: str, kwargs: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return target and kwargs to spawn so that the target runs in namespace `space`; unchanged if that is empty."""
    if not space:
        return target, dict(kwargs)
    return f"{__name__}:call_in", {"space": space, "target": target, "kwargs": dict(kwargs)}


def call_in(space: str, target: str, kwargs: Mapping[str, Any]) -> Any:
    libc = ctypes.CDLL(None, use_errno=True)
    fd = os.open(f"/var/run/netns/{space}", os.O_RDONLY)
    try:
        if libc.setns(fd, CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), f"cannot enter network namespace {space!r}")
    finally:
        os.close(fd)
    return resolve(target)(**kwargs)
