"""One-sided writes under way.

One that has been submitted may land whenever it likes, also after its call has failed and after its writer has died,
until the engine that it is addressed to is destroyed, by the fence or with its process. It reads the source when it
lands: reading earlier would only show content that was still right, so this is the worst case.
"""

from collections.abc import Callable, Iterable
from enum import IntEnum
from typing import NamedTuple

from tests.explorer.local import Outcome
from tests.explorer.rank import Contents
from tests.explorer.scene import Handle


class Stage(IntEnum):
    CHECKED = 0  # the machine has allowed it; the sender sleeps before it submits
    FLYING = 1  # submitted
    LANDED = 2  # all bytes are in place, the call has not returned
    FAILED = 3  # the call returned an error; bytes may still come (E1)
    ORPHAN = 4  # the writer is dead; bytes may still come (E2)
    DOOMED = 5  # its engine is gone: the call can only fail


class Write(NamedTuple):
    """One push under way."""

    writer: int  # incarnation
    handle: Handle | None  # None: no thread waits for its call any more
    owner: str  # transfer that it is for
    engine: str
    source: int  # block on P
    target: int  # block on D
    layer: int
    stage: Stage
    content: str  # of an orphan: what its socket buffer holds


class Writes:
    """All sets of writes that have been reached, by number; 0 is none."""

    def __init__(self) -> None:
        self.known: list[tuple[Write, ...]] = []
        self._numbers: dict[tuple[Write, ...], int] = {}
        self._after: dict[tuple[int, int], int] = {}
        self.number([])

    def number(self, writes: Iterable[Write]) -> int:
        key = tuple(sorted(set(writes), key=_order))
        if key not in self._numbers:
            self._numbers[key] = len(self.known)
            self.known.append(key)
        return self._numbers[key]

    def after(self, writes: int, outcome: Outcome) -> int:
        """Return the writes after an event that began some or destroyed an engine."""
        key = (writes, outcome.number)
        if key not in self._after:
            new = [Write(outcome.incarnation, *submitted, Stage.CHECKED, "") for submitted in outcome.submitted]
            before = self.known[writes]
            if outcome.fenced:
                before = destroy(before, lambda engine: engine != outcome.fenced)
            self._after[key] = self.number((*before, *new))
        return self._after[key]


def destroy(writes: Iterable[Write], alive: Callable[[str], bool]) -> tuple[Write, ...]:
    """Destroy engines: what comes through them stops, and calls that have not returned will fail."""
    kept = []
    for write in writes:
        if write.stage in (Stage.CHECKED, Stage.LANDED) or alive(write.engine):
            kept.append(write)
        elif write.stage in (Stage.FLYING, Stage.DOOMED):
            kept.append(write._replace(stage=Stage.DOOMED))
    return tuple(kept)


def read(contents: Contents, block: int, layer: int) -> str:
    """Return what a write finds in a source block; nothing if the process is dead."""
    return dict(contents)[block][layer] if contents else ""


def orphan(writes: Iterable[Write], writer: int, contents: Contents) -> tuple[Write, ...]:
    """The writer dies: what it has submitted may still come out of its kernel."""
    left = []
    for write in writes:
        if write.writer != writer:
            left.append(write)
        elif write.stage in (Stage.FLYING, Stage.FAILED):
            left.append(
                write._replace(stage=Stage.ORPHAN, handle=None, content=read(contents, write.source, write.layer))
            )
    return tuple(left)


def _order(write: Write) -> tuple[object, ...]:
    return (*write[:1], write.handle or ("", 0, 0), *write[2:])
