"""Whether every state comes to rest once nothing bad happens any more (I5), and by what means.

From each state one fair run is followed: what is under way arrives in order and succeeds, the schedulers and the
sender do what they have begun, D allocates what P has started, fences are carried out, dead processes stay dead. When
nothing moves, the clock moves by a beat; when that changes nothing either, time-outs expire one after the other. Such
a run must end with nothing kept on either side: no block, no transfer, no session with the dead, and an answer for the
request.

A time-out is no repair: what was lost has to be said again with a beat, and all of it with the same one. So between
time-outs one beat may change something, and a time-out is excused only by what no message can mend.
"""

from array import array
from collections.abc import Callable

from tests.explorer.scope import FIRST, Label
from tests.explorer.sides import Known, Sides
from tests.explorer.words import sentence
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
    ("P", "sample"),
    ("P", "hear"),
    ("P", "hold"),
    ("D", "prepare"),
    ("D", "zeroed"),
    ("N", "push"),
    ("N", "fence"),
    ("N", "device"),
    ("N", "step"),
    ("N", "end"),
)
RANK = {name: rank for rank, name in enumerate(URGENT)}
# When nothing is left to do by itself, in this order.
BEATS: tuple[tuple[str, str], ...] = (("D", "tick"), ("D", "beat"), ("N", "tick"), ("N", "beat"))
TIME_OUTS: tuple[tuple[str, str], ...] = (
    ("P", "orphan"),
    ("D", "unanswered"),
    ("D", "overdue"),
    ("P", "silence"),
    ("D", "silence"),
    *(("N", what) for what in ("stall", "orphan", "unanswered", "overdue", "silence")),
)
BEATEN = {place: 1 << number for number, place in enumerate(FIRST)}
PATIENT = {name: rank for rank, name in enumerate(BEATS + TIME_OUTS)}
UNKNOWN = 255


class UnrestError(Exception):
    """A fair run does not come to rest as it should."""


def check(states: int, step: Callable[[int], tuple[int, Label | None]]) -> tuple[int, str]:
    """Follow a fair run from each state.

    Args:
        states: How many there are.
        step: Returns for a state the next one of its fair run, and the patient step that leads there, if it is one; the
            same state if nothing moves. Raises `UnrestError`.

    Returns:
        A state that does not come to rest and what is wrong; `(0, "")` if there is none.
    """
    beats = bytearray([UNKNOWN]) * states  # of whom they change something, until a time-out or the end: a bit for each
    for start in range(states):
        path: dict[int, Label | None] = {}
        here = start
        while beats[here] == UNKNOWN:
            if here in path:
                return start, "I5: from here on, it goes round in circles for ever"
            try:
                there, path[here] = step(here)
            except UnrestError as error:
                return start, str(error)
            if there == here:
                beats[here] = 0
            here = there
        needed = beats[here]
        for state, label in reversed(path.items()):
            if label and kind_of(label) in TIME_OUTS:
                needed = 0
            elif label and label.what == "beat":
                if needed & BEATEN[label.where]:
                    return state, "repair: from here on, one beat does not say again all that was lost"
                needed |= BEATEN[label.where]
            beats[state] = needed
    return 0, ""


class Rest:
    """Collects the fair step of every state while the exploration goes on, and follows them afterwards."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._next = array("q")  # the fair step; NONE: nothing happens by itself
        self._rank = array("b")
        self._patient: dict[int, list[tuple[int, int, Label]]] = {}  # here → order, there, label
        self._waited: dict[int, Label] = {}  # here → the patient one that was chosen

    def note(self, here: int, state: State, label: Label, there: int) -> None:
        """Look at one edge of the exploration."""
        while len(self._next) <= here:
            self._next.append(NONE)
            self._rank.append(len(URGENT))
        kind = kind_of(label)
        rank = RANK.get(kind)
        if rank is not None and there != here:
            if rank < self._rank[here] and happens(label, self._world.known(state)):
                self._next[here], self._rank[here] = there, rank
        elif kind in PATIENT and there != here:
            self._patient.setdefault(here, []).append((PATIENT[kind], there, label))

    def check(self, states: list[State]) -> tuple[int, str]:
        """Return a state that does not come to rest and what is wrong, or `(0, "")`."""
        return check(len(states), lambda here: self._step(here, states))

    def _step(self, here: int, states: list[State]) -> tuple[int, Label | None]:
        if here < len(self._next):
            if self._next[here] != NONE:
                return self._next[here], self._waited.get(here)
            known = self._world.known(states[here])
            left: list[Label] = []
            for _, there, label in sorted(self._patient.pop(here, [])):
                fair = is_fair(label, known, self._world.sides)
                if fair is None or self._settles_at(there) == here:
                    continue
                if fair:
                    self._next[here], self._waited[here] = there, label
                    return there, label
                left.append(label)
            if left:
                raise bare(left[0])
        finish(self._world.known(states[here]))
        return here, None

    def _settles_at(self, here: int) -> int:
        while self._rank[here] < len(URGENT):
            here = self._next[here]
        return here


def is_fair(label: Label, known: Known, sides: Sides) -> bool | None:
    """Whether a fair run may take a patient step; `None` if it never would.

    A beat may always come. A time-out is excused if no message could do what it does, for all that is known of the
    ranks. What is not excused may still happen in the end: that is what `bare` is for.
    """
    if kind_of(label) in BEATS or label.what == "stall":  # want of blocks is no loss
        return True
    if label.what == "silence":  # for good, only when the peer is dead or has hung up
        return None if sides.talks(label, known) else True
    flow = label.arguments[0]
    source, target = sides.scene.ends(flow)
    p, d = known[source], known[target]
    if p is None:
        return True
    if label.what == "orphan":  # excused if D has not asked this P for it, or has hung up since
        asked = sides.scene.keeps_in_touch and p.incarnation == FIRST[source] and d is not None and flow in d.asks
        return not (asked or (d is not None and flow in d.flows))
    return label.what == "overdue" and flow in p.lacks


def bare(label: Label) -> UnrestError:
    """Only this time-out is left, and nothing excuses it."""
    return UnrestError(f"repair: from here on, only a time-out helps: {sentence(label)}")


def finish(known: Known) -> None:
    """Nothing moves any more.

    Raises:
        UnrestError: something is kept or waited for.
    """
    living = {facts.incarnation for facts in known.values() if facts}
    for place, facts in known.items():
        if facts is None:
            continue
        dead = [peer for peer in facts.peers if (known[peer] is None if isinstance(peer, str) else peer not in living)]
        if dead or not facts.at_rest:
            raise UnrestError(f"I5: from here on, something is kept or waited for for ever at {place}")


def happens(label: Label, known: Known) -> bool:
    """Whether a fair run takes an urgent step.

    Bytes of a failed call or a dead writer may come or not. A scheduler whose pool is nearly full allocates what P has
    started.
    """
    if label[:2] == ("write", "land"):
        return label.arguments[-1] is Stage.FLYING
    if label.what == "prepare":
        d = known[label.where]
        return d is not None and label.arguments[0] in d.started
    return True


def kind_of(label: Label) -> tuple[str, str]:
    """Return what happens, whichever rank of a node it happens at."""
    return label.where[0] if label.where in FIRST else label.where, label.what
