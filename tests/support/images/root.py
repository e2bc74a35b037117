"""One root file system made of layers, and commands in it: each in a mount and process namespace of its own.

What a command mounts is gone with it, so nothing that is lent to it can be left behind, or be removed with the root.
"""

import shlex
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.support.images.machine import NAME_SERVERS

MOUNT_POINT: Final = "/mnt"
TMPFS: Final = "noexec,nosuid,nodev,mode=1777"  # as an engine mounts them
DEVICES: Final = ("null", "zero", "full", "random", "urandom", "tty")


@dataclass(frozen=True, slots=True, kw_only=True)
class Root:
    """Layers, the topmost first; the first one is written to."""

    layers: Sequence[Path]
    work: Path  # empty, on the same file system as the topmost one

    def mounts(self, at: str = MOUNT_POINT) -> list[str]:
        """Return the shell commands that bring it to a place."""
        top, *below = self.layers
        options = f"lowerdir={':'.join(map(str, below))},upperdir={top},workdir={self.work}"
        return [f"mount -t overlay overlay -o {shlex.quote(options)} {at}"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """How a command runs in a root."""

    environ: Mapping[str, str]
    user: str = "0:0"
    folder: str = "/"
    lent: Mapping[str, str] = field(default_factory=dict)  # path in the root → path here, for reading
    mounted: Mapping[str, str] = field(default_factory=dict)  # likewise, for writing
    temporary: Sequence[str] = ()  # folders in memory, each with options behind a colon, as compose writes them
    read_only: bool = False
    confined: bool = False  # no capability, none to be had
    network: str = ""  # name of a network namespace; empty: this machine's


def in_root(root: Root, argv: Sequence[str], run: Run) -> list[str]:
    """Return the command line that runs `argv` in a root, as process 1 of its namespace."""
    at = MOUNT_POINT
    script = ["set -e", *root.mounts(at), f"mount -t proc proc {at}/proc", f"mount -t sysfs -o ro sysfs {at}/sys"]
    script.append(f"mount -t tmpfs tmpfs {at}/dev")
    for device in DEVICES:
        script += [f"touch {at}/dev/{device}", f"mount --bind /dev/{device} {at}/dev/{device}"]
    script += [f"ln -s /proc/self/fd {at}/dev/fd", f"mkdir -m 1777 {at}/dev/shm"]
    for entry in run.temporary:
        folder, _, options = entry.partition(":")
        options = ",".join(filter(None, (TMPFS, options)))
        script += [f"mkdir -p {at}{folder}", f"mount -t tmpfs -o {options} tmpfs {at}{folder}"]
    for target, source in {**run.mounted, **run.lent}.items():
        script += [_place(source, f"{at}{target}"), f"mount --bind {shlex.quote(source)} {at}{target}"]
        script += [f"mount -o remount,bind,ro {at}{target}"] if target in run.lent else []
    script += [f"mount -o remount,ro {at}"] if run.read_only else []
    script.append("exec " + shlex.join(["chroot", at, *_inside(argv, run)]))
    space = ["unshare", "--mount", "--propagation", "private", "--pid", "--fork", "--kill-child"]
    entered = ["nsenter", f"--net=/run/netns/{run.network}"] if run.network else []
    return [*entered, *space, "sh", "-c", "\n".join(script)]


def beside(process: int, argv: Sequence[str], run: Run) -> list[str]:
    """Return the command line that runs `argv` where another one runs, as `docker exec` does; `process` is its id here."""
    spaces = ["--mount", "--pid", "--net", "--root", "--wd"]
    return ["nsenter", "--target", str(process), *spaces, *_inside(argv, run)]


def first_process(unshare: int) -> int:
    """Return the id here of the process that `in_root` runs, from that of the program which was started."""
    return int(Path(f"/proc/{unshare}/task/{unshare}/children").read_text().split()[0])


def copy(root: Root, source: str, target: str, source_root: Root | None = None) -> None:
    """Copy a file, or all that is in a folder, into a root: from here, or from another root."""
    script = ["set -e", *root.mounts()]
    if source_root is not None:
        script += ["mkdir /run/baton-copied", *source_root.mounts("/run/baton-copied")]
        source = f"/run/baton-copied{source}"
    else:
        script.append("true")
    place = shlex.quote(MOUNT_POINT + target)
    quoted = shlex.quote(source)
    script.append(
        f"if [ -d {quoted} ]; then mkdir -p {place}; cp -a --no-preserve=ownership {quoted}/. {place}/; "
        f"else mkdir -p $(dirname {place}x); cp -a --no-preserve=ownership {quoted} {place}; fi"
    )
    space = ["unshare", "--mount", "--propagation", "private", "sh", "-c"]
    prepared = "mount -t tmpfs tmpfs /run\n" + "\n".join(script)
    subprocess.run([*space, prepared], check=True)


def _inside(argv: Sequence[str], run: Run) -> list[str]:
    user, _, group = run.user.partition(":")
    confined = ["--bounding-set=-all", "--inh-caps=-all", "--no-new-privs"] if run.confined else []
    become = ["setpriv", f"--reuid={user}", f"--regid={group or user}", "--clear-groups", *confined]
    environ = [f"{name}={value}" for name, value in run.environ.items()]
    return ["env", "-i", "-C", run.folder, *environ, *become, *argv]


def _place(source: str, target: str) -> str:
    if Path(source).is_dir():
        return f"mkdir -p {target}"
    made = f"mkdir -p {Path(target).parent}; [ -e {target} ] || touch {target}"
    # Debian's is a link in some roots: a file is needed to be mounted on.
    return f"rm -f {target}; {made}" if target.endswith(NAME_SERVERS) else made
