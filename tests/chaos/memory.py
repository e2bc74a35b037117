"""How much memory each process holds, from the kernel's own account.

Two things have to be out of the way, for all servers alike, before growth means anything:

- A page that several processes have counts in each one's proportional share (PSS) as its part of it. Servers that are forked
  from one process which has imported vLLM grow as they make its pages their own. So each is started by itself.
- oneDNN, under torch, keeps 1,024 kernels that it has compiled, one for each shape of a batch: some 400 MB that a storm
  goes on filling. So it gets to keep a few (`FEW_KERNELS`).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.usage import descendants
from tests.e2e.stack import Server

ALLOWED_SHARE: Final = 0.05  # growth beyond that of a plain server under the same storm
FEW_KERNELS: Final = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "16"}
_PROC = Path("/proc")


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """One process before and after a storm."""

    process: str
    before_bytes: int
    after_bytes: int

    @property
    def share(self) -> float:
        """How much it grew, as a share of what it was."""
        return self.after_bytes / self.before_bytes - 1.0


def processes_of(server: Server) -> dict[str, int]:
    """Return process ids of a server by a name: the server's own, then those of its children, such as `p0/engine`."""
    if server.child is None or server.child.poll() is not None:
        return {}
    found = {server.name: server.child.pid}
    for pid in descendants(server.child.pid):
        found[f"{server.name}/{_title(pid)}"] = pid
    return found


def pss_bytes(pid: int) -> int:
    """Return what a process holds."""
    rollup = (_PROC / str(pid) / "smaps_rollup").read_text()
    return next(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:")) * 1024


def measure(servers: Iterable[Server]) -> dict[str, int]:
    """Return the PSS of every process of some servers, by name."""
    return {name: pss_bytes(pid) for server in servers for name, pid in processes_of(server).items()}


def growths(before: Mapping[str, int], after: Mapping[str, int]) -> list[Growth]:
    """Pair two measurements; processes that are in both."""
    return [
        Growth(process=name, before_bytes=before[name], after_bytes=after[name]) for name in before if name in after
    ]


def beyond(ours: list[Growth], plain: list[Growth]) -> list[str]:
    """Name the processes that grew by more than a plain server's process of the same kind, and 5 %.

    The kind is what stands behind the slash: an engine is compared with the engine. The proxy, which a plain server
    does not have, is compared with the plain server's own process.
    """
    allowed = {kind_of(growth.process): growth.share + ALLOWED_SHARE for growth in plain}
    return [
        f"{growth.process} grew by {growth.share:.1%}, a plain server's by {allowed[kind] - ALLOWED_SHARE:.1%}"
        for growth in ours
        if (kind := kind_of(growth.process)) in allowed and growth.share > allowed[kind]
    ]


def kind_of(process: str) -> str:
    """Return what a process is: "" for the server's own, "engine" for its engine."""
    return process.partition("/")[2]


def _title(pid: int) -> str:
    try:
        command = (_PROC / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return "ended"
    return "engine" if "EngineCore" in command else "helper"
