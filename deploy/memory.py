"""Is there memory for the nodes that `baton serve` is to start on a CPU, and did the kernel kill one for want of it?"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from baton.contracts.probe import MIB

SHARED_BYTES: Final = 600 * MIB  # what the process that imports vLLM holds, once; seen: 614 MiB
NODE_BYTES: Final = 400 * MIB  # of one node without KV cache and weights; seen: 510 MiB with both, embedded model
_UNLIMITED: Final = 1 << 60  # what a control group of version 1 says where there is no limit is somewhat below 2^63


def needed_bytes(nodes: Iterable[tuple[int, int, int]]) -> int:
    """Return what nodes need; for each kind of them: how many, bytes of KV cache, bytes of weights."""
    return SHARED_BYTES + sum(count * (NODE_BYTES + kv_cache + weights) for count, kv_cache, weights in nodes)


def available_bytes(root: Path = Path("/")) -> int | None:
    """Return how much memory this process and its children can still get: the machine's, or less in a control group.

    None if the kernel does not tell.
    """
    try:
        lines = (root / "proc/meminfo").read_text().splitlines()
        machine = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        return None
    return min([machine, *_left_in_groups(root)])


def oom_kills(root: Path = Path("/")) -> int:
    """Return how many processes the kernel has killed for want of memory since the machine started; 0 if it does not tell."""
    try:
        lines = (root / "proc/vmstat").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)


def weights_bytes(model: str) -> int:
    folder = Path(model)
    return sum(path.stat().st_size for pattern in ("*.safetensors", "*.bin") for path in folder.glob(pattern))


def _left_in_groups(root: Path) -> Iterator[int]:
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            folders = [root / "sys/fs/cgroup", root / "sys/fs/cgroup/unified"]
            names = ("memory.max", "memory.current")
        elif "memory" in controllers.split(","):
            folders, names = [root / "sys/fs/cgroup/memory"], ("memory.limit_in_bytes", "memory.usage_in_bytes")
        else:
            continue
        for folder in folders:
            own = folder / path.lstrip("/")
            for group in (own, *(each for each in own.parents if each.is_relative_to(folder))):
                yield from _left(group, *names)


def _left(group: Path, limit_name: str, usage_name: str) -> Iterator[int]:
    try:
        limit = int((group / limit_name).read_text())
        used = int((group / usage_name).read_text())
        stat = dict(line.split(" ", 1) for line in (group / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):  # no such group seen from here, or no limit ("max")
        return
    if limit < _UNLIMITED:
        yield max(0, limit - used + int(stat.get("total_inactive_file", stat.get("inactive_file", 0))))
