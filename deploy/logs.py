"""Logs of the stack's processes: one file each, shown line by line behind the process's name."""

import re
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import BinaryIO

POLL_S = 0.1

# What vLLM, torch and Mooncake say on every start and no operator can act on. Errors are shown; the files keep it all.
NOISE = re.compile(
    r"""
      ^\s*$
    | \b(DEBUG|INFO|WARNING)\ \d\d-\d\d\ \d\d:   # vLLM's log below errors
    | ^(DEBUG|INFO):                             # uvicorn's
    | ^[IW]\d{4,8}\ \d\d:                         # glog's, and the line before it
    | ^WARNING:\ Logging\ before\ InitGoogle
    | it/s\]|s/it\]                              # progress bars
    | Local\ segment\ descriptor\ not\ found      # Mooncake, when it opens a peer for the first time
    | nanobind:
    """,
    re.VERBOSE,
)

CAUSE = re.compile(r"\b(?:kv_connector|model_runner|contracts)(?:\.\w+)*\.\w+Error: (.+)")  # a traceback's last line


class LogFollower:
    """Prints what is added to log files (by process name), each line with a prefix; `everything`: what `NOISE` matches too."""

    def __init__(self, files: Mapping[str, Path], say: Callable[[str], None], *, everything: bool) -> None:
        width = max(map(len, files), default=0)
        self._followed = {f"{name:<{width}} | ": _Followed(path) for name, path in files.items()}
        self._say = say
        self._everything = everything
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="logs", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()
        for file in self._followed.values():
            file.close()

    def _run(self) -> None:
        while not self._stopping.wait(POLL_S):
            self._print_new()
        self._print_new()

    def _print_new(self) -> None:
        for prefix, file in self._followed.items():
            for line in file.new_lines():
                if self._everything or not NOISE.search(line):
                    self._say(prefix + line)


class _Followed:
    """One file, read as it grows."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: BinaryIO | None = None
        self._rest = b""

    def new_lines(self) -> list[str]:
        if self._file is None:
            if not self._path.exists():
                return []
            self._file = self._path.open("rb")
        *lines, self._rest = (self._rest + self._file.read()).split(b"\n")
        return [line.decode(errors="replace").rpartition("\r")[2] for line in lines]

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def last_lines(path: Path, count: int = 20) -> list[str]:
    if not path.exists():
        return []
    return path.read_text(errors="replace").splitlines()[-count:]


def cause(path: Path) -> str:
    """Return what the last error of Baton's own in a log says, "" if there is none: vLLM's last lines say only that there was one."""
    if not path.exists():
        return ""
    said = CAUSE.findall(path.read_text(errors="replace"))
    return said[-1].strip() if said else ""
