"""A root file system made of layers, and commands in it: each in a mount and process namespace of its own.

What a command mounts is gone with it, so nothing that is lent to it can be left behind, or be removed with the root.
"""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.newcomer.debian import NAME_SERVERS

MOUNT_POINT: Final = "/mnt"
DEVICES: Final = ("null", "zero", "full", "random", "urandom", "tty")


@dataclass(frozen=True, slots=True, kw_only=True)
class Root:
    """Layers, the topmost first; the first one is written to."""

    layers: Sequence[Path]
    work: Path  # empty, on the same file system as the topmost one


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """How a command runs in a root."""

    environ: Mapping[str, str]
    folder: str
    lent: Mapping[str, str]  # path in the root → path here, for reading


def in_root(root: Root, argv: Sequence[str], run: Run) -> list[str]:
    """Return the command line that runs `argv` in a root, as process 1 of its namespace."""
    at = MOUNT_POINT
    top, *below = root.layers
    options = f"lowerdir={':'.join(map(str, below))},upperdir={top},workdir={root.work}"
    script = ["set -e", f"mount -t overlay overlay -o {shlex.quote(options)} {at}"]
    script += [
        f"mount -t proc proc {at}/proc",
        f"mount -t sysfs -o ro sysfs {at}/sys",
        f"mount -t tmpfs tmpfs {at}/dev",
    ]
    for device in DEVICES:
        script += [f"touch {at}/dev/{device}", f"mount --bind /dev/{device} {at}/dev/{device}"]
    script += [f"ln -s /proc/self/fd {at}/dev/fd", f"mkdir -m 1777 {at}/dev/shm"]
    for target, source in run.lent.items():
        place = f"{at}{target}"
        script += [_place(source, place), f"mount --bind {shlex.quote(source)} {place}"]
        script.append(f"mount -o remount,bind,ro {place}")
    script.append("exec " + shlex.join(["chroot", at, *_inside(argv, run)]))
    space = ["unshare", "--mount", "--propagation", "private", "--pid", "--fork", "--kill-child"]
    return [*space, "sh", "-c", "\n".join(script)]


def beside(process: int, argv: Sequence[str], run: Run) -> list[str]:
    """Return the command line that runs `argv` where another one runs, as `docker exec` does; `process` is its id here."""
    spaces = ["--mount", "--pid", "--net", "--root", "--wd"]
    return ["nsenter", "--target", str(process), *spaces, *_inside(argv, run)]


def first_process(unshare: int) -> int:
    """Return the id here of the process that `in_root` runs, from that of the program which was started."""
    return int(Path(f"/proc/{unshare}/task/{unshare}/children").read_text().split()[0])


def _inside(argv: Sequence[str], run: Run) -> list[str]:
    environ = [f"{name}={value}" for name, value in run.environ.items()]
    become = ["setpriv", "--reuid=0", "--regid=0", "--clear-groups"]
    return ["env", "-i", "-C", run.folder, *environ, *become, *argv]


def _place(source: str, target: str) -> str:
    if Path(source).is_dir():
        return f"mkdir -p {target}"
    made = f"mkdir -p {Path(target).parent}; [ -e {target} ] || touch {target}"
    # Debian's is a link in some roots: a file is needed to be mounted on.
    return f"rm -f {target}; {made}" if target.endswith(NAME_SERVERS) else made
