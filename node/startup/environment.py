"""The process environment that vLLM reads, decided in one place and set before the engine starts."""

import math
import os
import re
from collections.abc import Mapping, MutableMapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from baton.model_runner import choose
from baton.model_runner.channel import AUDIT_VARIABLE, RUNTIME_DIR_VARIABLE, STEP_TIMEOUT_VARIABLE
from baton.node.errors import StartRefusedError
from baton.node.startup.addresses import Addresses, interface_of
from baton.node.startup.flags import ranks_of
from baton.node.startup.hosts import Hosts, hosts_of

VLLM_STEP_TIMEOUT: Final = "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS"
AFTER_WATCHDOG_S: Final = 10.0
_RUNNER: Final = "VLLM_USE_V2_MODEL_RUNNER"
_PRELOAD: Final = "LD_PRELOAD"
_PRELOADED: Final = (  # package, patterns below its folder; as `vllm.platforms.cpu` looks for them
    ("vllm", ("libs/libtcmalloc_minimal*.so*", "libs/libtcmalloc.so*")),
    ("torch", ("../torch.libs/libgomp*.so*", "lib/libgomp*.so*")),
)
_DIVIDES: Final = re.compile(r"[\s:]")


def environment(device: str, arguments: Sequence[str], cores: int, current: Mapping[str, str]) -> dict[str, str | None]:
    """Return the variables to set, and those to remove as None. What the user has set stays, except for removals."""
    if device != "cpu":
        return {}
    ranks, engines = ranks_of(arguments)
    # An integer of GiB that would override --kv-cache-memory-bytes.
    wanted: dict[str, str | None] = {"VLLM_CPU_KVCACHE_SPACE": None}
    if "--enforce-eager" in arguments:
        wanted["TORCHDYNAMO_DISABLE"] = "1"  # without it the first request of an eager TP=2 server takes 15 s
    if ranks == 1:
        wanted["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # each engine's worker lives in its process
    if ranks * engines > 1:
        # vLLM's automatic binding wants a NUMA node for each rank.
        wanted["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"
        wanted["OMP_NUM_THREADS"] = str(max(1, cores // (hosts_of(arguments).ranks_here * engines)))
    return {name: value for name, value in wanted.items() if value is None or name not in current}


def of_preloads(folder: Path, current: Mapping[str, str]) -> dict[str, str | None]:
    """Return `LD_PRELOAD` with links in `folder` for the libraries whose path cannot be named; empty if there are none.

    On a CPU vLLM appends the paths of torch's libgomp and of its libtcmalloc, at whose spaces and colons the dynamic
    loader divides; it appends nothing for a library that is named there already.
    """
    found = [library for package, patterns in _PRELOADED for library in _find_library(package, patterns)]
    if not any(_DIVIDES.search(str(library)) for library in found) or _DIVIDES.search(str(folder)):
        return {}
    links = [folder / library.name for library in found]
    for link, library in zip(links, found, strict=True):
        with suppress(FileExistsError):
            link.symlink_to(library)
    return {_PRELOAD: ":".join([*filter(None, [current.get(_PRELOAD)]), *map(str, links)])}


def _find_library(package: str, patterns: tuple[str, ...]) -> list[Path]:
    """Return the library, or nothing."""
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        return []
    folder = Path(spec.origin).parent
    return [file.resolve() for pattern in patterns for file in sorted(folder.glob(pattern))][:1]


def of_runner(device: str, model_runner: str, current: Mapping[str, str]) -> dict[str, str | None]:
    """Return what makes vLLM run its V1 runner where ours is wanted. Raises `StartRefusedError`: V2 is asked for."""
    if choose.resolve(device, model_runner) != "baton":
        return {}
    if current.get(_RUNNER, "0").strip() != "0":
        raise StartRefusedError(
            f"{_RUNNER}={current[_RUNNER]} asks for vLLM's V2 runner, and model_runner: baton (on a CPU also auto) needs V1: "
            "unset it, or set model_runner to engine"
        )
    return {} if device == "cpu" else {_RUNNER: "0"}  # a CPU has no other


def of_worker(runtime_dir: Path, *, sync_audit: bool) -> dict[str, str | None]:
    """Return what the worker is told by its environment, even where it was set before."""
    return {RUNTIME_DIR_VARIABLE: str(runtime_dir), AUDIT_VARIABLE: "1" if sync_audit else None}


def of_step(timeout_s: float, current: Mapping[str, str]) -> dict[str, str | None]:
    """Return what bounds a step: the watchdog's bound, and vLLM's own for several ranks, which knows no stacks, after it."""
    wanted: dict[str, str | None] = {STEP_TIMEOUT_VARIABLE: repr(timeout_s)}
    if VLLM_STEP_TIMEOUT not in current:
        wanted[VLLM_STEP_TIMEOUT] = str(math.ceil(timeout_s + AFTER_WATCHDOG_S))
    return wanted


def of_hosts(hosts: Hosts, addresses: Addresses, current: Mapping[str, str]) -> dict[str, str | None]:
    """Return what lets ranks on several hosts find each other: by default vLLM and torch go by the host's name."""
    if hosts.count == 1:
        return {}
    wanted: dict[str, str | None] = {"VLLM_HOST_IP": addresses.data_host}
    if interface := interface_of(addresses.data_host):
        wanted["GLOO_SOCKET_IFNAME"] = interface
    return {name: value for name, value in wanted.items() if name not in current}


def apply(changes: Mapping[str, str | None], environ: MutableMapping[str, str] = os.environ) -> None:
    for name, value in changes.items():
        if value is None:
            environ.pop(name, None)
        else:
            environ[name] = value
