"""Whether every state comes to rest once nothing bad happens any more (I5).

From each state one fair run is followed: what is under way arrives in order and succeeds, the schedulers and the
sender do what they have begun, fences are carried out, dead processes stay dead. When nothing moves, D beats; when a
beat changes nothing either, time-outs expire one after the other. Such a run must end with nothing kept on either side:
no block, no transfer, no session with the dead, and an answer for the request.

The run's steps are edges that the exploration has found anyway, so each state costs one look.
"""

from array import array

from tests.explorer.local import Facts
from tests.explorer.scope import Label
from tests.explorer.sides import D, P
from tests.explorer.world import State, World
from tests.explorer.writes import Stage

NONE = -1
# What happens by itself, most urgent first.
URGENT: tuple[tuple[str, str], ...] = (
    ("net", "deliver"),
    ("write", "submit"),
    ("write", "land"),
    ("write", "succeed"),
    ("write", "fail"),
    ("P", "push"),
    ("P", "digest"),
    ("D", "verify"),
    ("D", "fence"),
    ("P", "ready"),
    ("P", "hold"),
    ("D", "prepare"),
    ("D", "zeroed"),
)
RANK = {name: rank for rank, name in enumerate(URGENT)}
# When nothing is left to do by itself, in this order. Time-outs of a live peer's silence do not belong here.
PATIENT: tuple[tuple[str, str], ...] = (
    ("D", "beat"),
    ("D", "tick"),
    ("P", "orphan"),
    ("D", "unanswered"),
    ("D", "overdue"),
    ("P", "silence"),
    ("D", "silence"),
)


class Rest:
    """Collects the fair step of every state while the exploration goes on, and follows them afterwards."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._next = array("q")  # the fair step; NONE: nothing happens by itself
        self._rank = array("b")
        self._patient: dict[int, list[tuple[int, int, Label]]] = {}  # here → order, there, label

    def note(self, here: int, label: Label, there: int) -> None:
        """Look at one edge of the exploration."""
        while len(self._next) <= here:
            self._next.append(NONE)
            self._rank.append(len(URGENT))
        kind = label[:2]
        rank = RANK.get(kind)
        if rank is not None and there != here and not comes_late(label):
            if rank < self._rank[here]:
                self._next[here], self._rank[here] = there, rank
        elif kind in PATIENT and there != here:
            self._patient.setdefault(here, []).append((PATIENT.index(kind), there, label))

    def check(self, states: list[State]) -> tuple[int, str]:
        """Return a state that does not come to rest and what is wrong, or `(0, "")`."""
        good = bytearray(len(states))
        for start in range(len(states)):
            path: list[int] = []
            on_path: set[int] = set()
            here = start
            while not good[here]:
                if here in on_path:
                    return start, "I5: from here on, it goes round in circles for ever"
                path.append(here)
                on_path.add(here)
                there = self._step(here, states)
                if there == NONE:
                    if not self._at_rest(states[here]):
                        return start, "I5: from here on, something is kept or waited for for ever"
                    break
                here = there
            for state in path:
                good[state] = 1
        return 0, ""

    def _step(self, here: int, states: list[State]) -> int:
        if here >= len(self._next):
            return NONE
        if self._next[here] != NONE:
            return self._next[here]
        for _, there, label in sorted(self._patient.pop(here, [])):
            if self._is_fair(label, states[here]) and self._settles_at(there) != here:
                self._next[here] = there
                return there
        return NONE

    def _settles_at(self, here: int) -> int:
        while self._rank[here] < len(URGENT):
            here = self._next[here]
        return here

    def _is_fair(self, label: Label, state: State) -> bool:
        """A peer falls silent for good only when it is dead or has hung up."""
        return label.what != "silence" or not self._world.sides.talks(
            label.where, ("silence", *label.arguments), state[0], state[1]
        )

    def _at_rest(self, state: State) -> bool:
        return rests(self._world.facts(state, P), self._world.facts(state, D))


def rests(p: Facts | None, d: Facts | None) -> bool:
    """Whether nothing is kept on either side, nor any session with the dead."""
    if p is not None and not (p.at_rest and p.peers <= ({d.incarnation} if d else set())):
        return False
    return d is None or (d.at_rest and not (p is None and d.peers))


def comes_late(label: Label) -> bool:
    """Whether a fair run leaves a step out: bytes of a failed call or a dead writer may come or not."""
    return label[:2] == ("write", "land") and label.arguments[-1] is not Stage.FLYING
