"""What a forked process does to be in a container: a root of its own over this machine's, with volumes, and a name server.

The root is a copy on write, in memory: a container sees this machine's programs at their places, and its volumes at those
that the compose file, or the manifest, names.
"""

import ctypes
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from baton.deploy.cli import main
from baton.deploy.forkserver import ROOT
from tests.support.composed.confinement import Confinement, confine, name_host, open_ways

_CLONE_NEWNS: Final = 0x00020000  # linux/sched.h
_MS_RDONLY, _MS_REMOUNT, _MS_BIND, _MS_REC, _MS_PRIVATE = 1, 32, 4096, 16384, 1 << 18  # linux/mount.h
_STAGE: Final = Path("/mnt")
_libc = ctypes.CDLL(None, use_errno=True)


def run(
    argv: list[str],
    volumes: Mapping[str, tuple[str, bool]],
    links: Mapping[str, str],
    confinement: Mapping[str, Any] | None = None,
) -> int:
    """Go into a container and run our command there.

    Args:
        argv: of `baton`.
        volumes: path in the container → folder or file here, and whether it may be written.
        links: path in the container → what it points to.
        confinement: the fields of a `Confinement`; None: root, in a root of its own that may be written.
    """
    confined = None if confinement is None else Confinement(**confinement)
    root = _make_root(volumes, links)
    if confined is not None:
        name_host(confined.host)
        open_ways(root, [ROOT, Path(sys.prefix), Path(sys.base_prefix)])
        (root / confined.folder[1:]).mkdir(parents=True, exist_ok=True)
        for target, size_bytes in confined.memory_bytes.items():
            _make_place(_STAGE, root / target[1:])
            _mount("tmpfs", root / target[1:], kind="tmpfs", data=f"size={size_bytes},mode=1777")
        _mount("overlay", root, flags=_MS_BIND | _MS_REMOUNT | _MS_RDONLY)
    os.chroot(root)
    os.chdir("/" if confined is None else confined.folder)
    if confined is not None:
        confine(confined)
    return main(argv)


def _make_root(volumes: Mapping[str, tuple[str, bool]], links: Mapping[str, str]) -> Path:
    if _libc.unshare(_CLONE_NEWNS) != 0:
        raise OSError(ctypes.get_errno(), "cannot have mounts of one's own")
    others = _mount_points()
    _mount("none", Path("/"), flags=_MS_REC | _MS_PRIVATE)
    _mount("tmpfs", _STAGE, kind="tmpfs")
    upper, work, root = (_STAGE / name for name in ("upper", "work", "root"))
    for folder in (upper, work, root):
        folder.mkdir()
    _mount("overlay", root, kind="overlay", data=f"lowerdir=/,upperdir={upper},workdir={work}")
    for path in others:
        _mount(path, root / path[1:], flags=_MS_BIND | _MS_REC)
    for target, (source, writable) in volumes.items():
        place = root / target[1:]
        _make_place(Path(source), place)
        _mount(source, place, flags=_MS_BIND)
        if not writable:
            _mount(source, place, flags=_MS_BIND | _MS_REMOUNT | _MS_RDONLY)
    for folder in (ROOT, Path(sys.prefix)):  # they are part of an image, wherever they lie here
        if any(folder.is_relative_to(volume) for volume in volumes):
            place = root / str(folder)[1:]
            place.mkdir(parents=True, exist_ok=True)  # another container with this volume may have made it
            _mount(str(folder), place, flags=_MS_BIND | _MS_REC)
    for target, source in links.items():
        (root / target[1:]).symlink_to(source)
    return root


def _make_place(source: Path, place: Path) -> None:
    if source.is_dir():
        place.mkdir(parents=True, exist_ok=True)
    elif not place.is_file():
        place.unlink(missing_ok=True)
        place.touch()


def _mount_points() -> list[str]:
    """Return what is mounted here, less the root and what lies below another one."""
    found: list[str] = []
    for path in sorted(line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()):
        if path != "/" and path != str(_STAGE) and not any(path.startswith(f"{other}/") for other in (*found, _STAGE)):
            found.append(path)
    return sorted(set(found))


def _mount(source: str, target: Path, *, kind: str = "", flags: int = 0, data: str = "") -> None:
    arguments = (source.encode(), str(target).encode(), kind.encode() or None, flags, data.encode() or None)
    if _libc.mount(*arguments[:3], ctypes.c_ulong(flags), arguments[4]) != 0:
        raise OSError(ctypes.get_errno(), f"cannot mount {source} at {target}: {os.strerror(ctypes.get_errno())}")
