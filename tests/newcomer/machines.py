"""Where a newcomer types: a clean Debian that knows this machine's registries."""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

from tests.newcomer import debian
from tests.newcomer.root import Root, Run, beside, first_process, in_root

REPOSITORY: Final = Path(__file__).parents[2]
TAKEN_FOR_GRANTED: Final = ("ca-certificates", "curl", "git", "make", "python3")  # by the README
INSTALL_S: Final = 300.0
STOP_S: Final = 30.0
PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
IDLE: Final = ("sleep", "infinity")
BEGUN_WITHIN_S: Final = 20.0
TICK_S: Final = 0.05


class Machine:
    """Debian's smallest system, in a mount and process namespace of its own, on this machine's network; for root.

    Commands begin in the home folder, where there is nothing yet.
    """

    repository = "/repository"  # what is cloned

    def __init__(self, folder: Path, settings: Mapping[str, str], release: str) -> None:
        """Lay a fresh layer over the system of a Debian release; `settings` are Baton's, by variables.

        Raises:
            debian.MachineError: there is no clean Debian to be had.
        """
        top, work = folder / "files", folder / "work"
        for made in (top, work):
            made.mkdir()
        loan = debian.loan(folder)
        self._folder = folder
        self._root = Root(layers=[top, debian.debian(release)], work=work)
        environ = {"PATH": PATH, "HOME": "/root", "DEBIAN_FRONTEND": "noninteractive", **loan.environ, **settings}
        lent = {**loan.folders, self.repository: str(_bare(folder))}
        self._run = Run(environ=environ, folder="/root", lent=lent)
        self._idle: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self._idle = subprocess.Popen(in_root(self._root, IDLE, self._run), stdin=subprocess.DEVNULL)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._idle is not None
        self._idle.kill()  # with it goes all in its process namespace
        self._idle.wait()
        for layer in ("files", "work"):
            shutil.rmtree(self._folder / layer)

    def prepare(self) -> None:
        """Install what the README takes for granted."""
        install = f"apt-get install -y -qq --no-install-recommends {' '.join(TAKEN_FOR_GRANTED)}"
        with self.start(f"apt-get update -qq && {install}") as installing:
            said, _ = installing.communicate(timeout=INSTALL_S)
        if installing.returncode != 0:
            raise debian.MachineError(f"apt-get failed:\n{said}")

    def start(self, line: str) -> subprocess.Popen[str]:
        """Have a shell run a line beside the process that holds the namespaces; its output is to be read."""
        return subprocess.Popen(
            beside(self._first(), ["bash", "-c", line], self._run),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )

    def _first(self) -> int:
        """The id here of the process that holds the namespaces, once it is in the root."""
        assert self._idle is not None
        deadline_s = time.monotonic() + BEGUN_WITHIN_S
        while self._idle.poll() is None and time.monotonic() < deadline_s:
            with suppress(OSError, IndexError):
                found = first_process(self._idle.pid)
                if Path(f"/proc/{found}/comm").read_text().strip() == IDLE[0]:
                    return found
            time.sleep(TICK_S)
        raise debian.MachineError("the clean root cannot be entered")


def stop(process: subprocess.Popen[str]) -> None:
    """Stop its whole group; what does not end by that is killed. Not as Ctrl-C does, which is ignored in the background.

    Raises:
        subprocess.TimeoutExpired: not all ended by that.
    """
    os.killpg(process.pid, signal.SIGTERM)
    deadline_s = time.monotonic() + STOP_S
    try:
        while _runs(process.pid):  # the process itself only leads into the namespaces, and ends first
            if time.monotonic() > deadline_s:
                raise subprocess.TimeoutExpired(process.args, STOP_S)
            time.sleep(TICK_S)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _runs(group: int) -> bool:
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended
            state, _, its_group = stat.read_text().rpartition(")")[2].split()[:3]
            if int(its_group) == group and state not in "ZX":
                return True
    return False


def _bare(folder: Path) -> Path:
    """What a repository's host has: the commits alone."""
    bare = folder / "baton.git"
    subprocess.run(["git", "clone", "-q", "--bare", "--no-hardlinks", REPOSITORY, bare], check=True)
    return bare
