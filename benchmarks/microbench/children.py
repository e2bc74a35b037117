"""The processes of one run: that of a part, and that of the receiver opposite it."""

import importlib
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Client
from pathlib import Path
from typing import Any, Final

import msgspec

from baton.deploy.forkserver import Child, ForkServer
from baton.deploy.logs import last_lines
from benchmarks.harness import BenchError
from benchmarks.microbench.figures import Figure
from benchmarks.microbench.rank import Target

PREPARE: Final = "benchmarks.microbench.children:prepare"
PART_TIMEOUT_S: Final = 90.0
START_TIMEOUT_S: Final = 30.0
STOP_TIMEOUT_S: Final = 5.0
_POLL_S: Final = 0.05
_RECEIVER: Final = "benchmarks.overlap.targets:raw_receiver"


class PartError(BenchError):
    """A part of the benchmark failed; the message holds the end of its log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a process runs."""

    host: str = "127.0.0.1"  # its address on the data link
    netns: str = ""


class Children:
    """Starts the processes of one run after another."""

    def __init__(self, forkserver: ForkServer, folder: Path) -> None:
        """`folder` is for logs and sockets; the fork server must have been made with `PREPARE`."""
        self._forkserver = forkserver
        self._folder = folder
        self._count = 0

    def figures(self, part: str, arguments: Mapping[str, Any], place: Place | None = None) -> Iterator[Figure]:
        """Run `"package.module:function"` in a process of its own; yield its figures. Raises `PartError`: it failed, or is late."""
        name, out = self._name("part")
        kwargs = {"part": part, "out": str(out), "arguments": dict(arguments)}
        child = self._spawn(f"{__name__}:run", name, kwargs, place or Place())
        try:
            yield from self._tail(name, out, child)
        finally:
            _end(child)

    @contextmanager
    def receiver(self, size: int, place: Place | None = None) -> Iterator[Target]:
        """Have another process offer `size` bytes of memory. Raises `PartError`: it does not come up."""
        place = place or Place()
        name, path = self._name("receiver")
        child = self._spawn(_RECEIVER, name, {"path": str(path), "host": place.host, "size": size}, place)
        try:
            give_up = time.monotonic() + START_TIMEOUT_S
            while not path.exists():
                self._check(name, child, give_up)
                time.sleep(_POLL_S)
            with Client(str(path)) as connection:
                yield Target(*connection.recv())
        finally:
            _end(child)

    def _tail(self, name: str, out: Path, child: Child) -> Iterator[Figure]:
        give_up, seen = time.monotonic() + PART_TIMEOUT_S, 0
        while True:
            ended = child.poll()  # before reading: what it wrote last is read as well
            complete = out.read_bytes().split(b"\n")[:-1] if out.exists() else []
            yield from (msgspec.json.decode(line, type=Figure) for line in complete[seen:])
            seen = len(complete)
            if ended == 0:
                return
            self._check(name, child, give_up)
            time.sleep(_POLL_S)

    def _check(self, name: str, child: Child, give_up: float) -> None:
        failed = child.poll()
        if failed or time.monotonic() > give_up:
            what = "failed" if failed else "took too long"
            raise PartError(f"{name} {what}; its last lines:\n" + "\n".join(last_lines(self._log(name))))

    def _spawn(self, target: str, name: str, kwargs: Mapping[str, Any], place: Place) -> Child:
        env = {"MC_TCP_BIND_ADDRESS": place.host}
        return self._forkserver.spawn(target, kwargs=kwargs, env=env, log=self._log(name), netns=place.netns)

    def _name(self, kind: str) -> tuple[str, Path]:
        self._count += 1
        return f"{kind}-{self._count}", self._folder / f"{kind}-{self._count}"

    def _log(self, name: str) -> Path:
        return self._folder / f"{name}.log"


def _end(child: Child) -> None:
    child.kill()
    child.wait(STOP_TIMEOUT_S)


# --- in the children ---


def prepare() -> None:
    importlib.import_module("baton.kv_connector.connector")


def run(part: str, out: str, arguments: Mapping[str, Any]) -> None:
    module, _, name = part.partition(":")
    function: Callable[..., Iterator[Figure]] = getattr(importlib.import_module(module), name)
    with Path(out).open("ab", buffering=0) as file:
        file.writelines(msgspec.json.encode(figure) + b"\n" for figure in function(**arguments))
