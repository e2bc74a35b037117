"""What the fork server runs besides our own nodes: vLLM's server as it is, and the two ends of a raw push."""

import ctypes
import importlib
import os
import sys
import time
from collections.abc import Sequence
from multiprocessing.connection import Listener
from typing import Any, Final

from baton.kv_connector.engine.mooncake import MooncakeFactory
from baton.kv_connector.layout.copy_plan import Copy, CopyPlan
from baton.node.startup import environment
from benchmarks.harness import HostMemory

_CLONE_NEWNS: Final = 0x20000
_MS_REC: Final = 0x4000
_MS_SLAVE: Final = 1 << 19
POLL_S: Final = 0.0002
_SERVER: Final = "vllm.entrypoints.launchers.api_server.entry"


def vllm_server(argv: Sequence[str]) -> None:
    """Serve with vLLM alone, in the environment that our nodes give it."""
    cores = len(os.sched_getaffinity(0))
    environment.apply(environment.environment("cpu", list(argv), cores, os.environ))
    torch = importlib.import_module("torch")
    torch.set_num_threads(worker().compute_threads(os.environ, torch.get_num_threads(), cores))
    sys.argv = ["vllm", *argv]
    importlib.import_module(_SERVER).main()


def vllm_with_mooncake(argv: Sequence[str]) -> None:
    """Serve with vLLM and its MooncakeConnector.

    The connector of 0.32 asks torch for the current accelerator's index and dies where there is none; on a CPU the
    index is used for nothing (`torch.cpu.set_device` ignores it), so it is answered here. So is what its decode node
    needs on a CPU with AMX (`ask_for_amx`); the engine is forked from this process and inherits the permission.
    """
    worker().ask_for_amx()
    accelerator = importlib.import_module("torch").accelerator
    if not accelerator.is_available():
        accelerator.current_device_index = lambda: 0
    vllm_server(argv)


def vllm_with_nixl(argv: Sequence[str]) -> None:
    """Serve with vLLM and its NixlConnector, whose wheels lie in a folder of their own, named by NIXL_FOLDER."""
    worker().ask_for_amx()
    _mount_sys()  # where UCX looks for network devices
    sys.path.append(os.environ["NIXL_FOLDER"])
    vllm_server(argv)


def worker() -> Any:
    return importlib.import_module("baton.model_runner.cpu")


def _mount_sys() -> None:
    """Give this process the /sys of its network namespace, as `ip netns exec` does."""
    libc = ctypes.CDLL(None, use_errno=True)
    unshared = libc.unshare(_CLONE_NEWNS)
    private = libc.mount(b"none", b"/", None, _MS_REC | _MS_SLAVE, None)
    if unshared or private or libc.mount(b"sysfs", b"/sys", b"sysfs", 0, None):
        raise OSError(ctypes.get_errno(), "/sys cannot be mounted")


def raw_receiver(path: str, host: str, size: int) -> None:
    """Offer memory to a sender: tell every caller at the Unix socket `path` the session and the address."""
    memory = HostMemory(size)
    receiver = MooncakeFactory(host=host).receiver([(memory.address, size)])
    with Listener(path, "AF_UNIX") as listener:
        while True:
            with listener.accept() as caller:
                caller.send((receiver.session, memory.address))


def raw_sender(path: str, host: str, size: int, copies: int) -> None:
    """Push on demand: a caller sends `(session, address, bytes)` and is told the seconds, or None for a failure."""
    source = HostMemory(size)
    sender = MooncakeFactory(host=host).sender([(source.address, size)])
    with Listener(path, "AF_UNIX") as listener, listener.accept() as caller:
        while True:
            session, target, length = caller.recv()
            each = length // copies
            spans = [Copy(source.address + i * each, target + i * each, each) for i in range(copies)]
            began = time.monotonic()
            push = sender.submit(session, CopyPlan.of(spans))
            while (ok := push.poll()) is None:
                time.sleep(POLL_S)
            caller.send(time.monotonic() - began if ok else None)
