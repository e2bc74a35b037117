"""How much memory each process holds, from the kernel's own account.

The servers here are forked from one process that has imported vLLM, and share its pages until either writes to them. So a
process's proportional share (PSS) also grows when it touches what it has had all along, and when others end. What is
judged is what it would hold if it had been started by itself: all its anonymous memory, shared or not.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from tests.e2e.stack import Server

ALLOWED_SHARE: Final = 0.05  # growth beyond that of a plain server under the same storm
_PROC = Path("/proc")


class Held(NamedTuple):
    """The memory of one process."""

    anonymous_bytes: int  # all of it that no file holds, whoever else shares it
    pss_bytes: int  # with its share of what others hold too, files included


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """One process before and after a storm."""

    process: str
    before: Held
    after: Held

    @property
    def share(self) -> float:
        """How much it grew, as a share of what it was."""
        return self.after.anonymous_bytes / self.before.anonymous_bytes - 1.0


def processes_of(server: Server) -> dict[str, int]:
    """Return process ids of a server by a name: the server's own, then those of its children, such as `p0/engine`."""
    if server.child is None or server.child.poll() is not None:
        return {}
    found = {server.name: server.child.pid}
    for pid in descendants(server.child.pid):
        found[f"{server.name}/{_title(pid)}"] = pid
    return found


def descendants(pid: int) -> list[int]:
    """Return children and their children."""
    found: list[int] = []
    try:
        for task in (_PROC / str(pid) / "task").iterdir():
            for child in (task / "children").read_text().split():
                found += [int(child), *descendants(int(child))]
    except (FileNotFoundError, ProcessLookupError):
        pass  # it ended meanwhile
    return found


def held(pid: int) -> Held:
    """Return what a process holds."""
    sizes = {}
    for line in (_PROC / str(pid) / "smaps_rollup").read_text().splitlines()[1:]:
        name, _, rest = line.partition(":")
        sizes[name] = int(rest.split()[0]) * 1024
    return Held(sizes["Anonymous"], sizes["Pss"])


def measure(servers: Iterable[Server]) -> dict[str, Held]:
    """Return what every process of some servers holds, by name."""
    return {name: held(pid) for server in servers for name, pid in processes_of(server).items()}


def growths(before: Mapping[str, Held], after: Mapping[str, Held]) -> list[Growth]:
    """Pair two measurements; processes that are in both."""
    return [
        Growth(process=name, before=before[name], after=after[name])
        for name in before
        if name in after and before[name].anonymous_bytes
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
