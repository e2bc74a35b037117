"""Whether every state comes to rest once nothing bad happens any more (I5), and by what means.

From each state one fair run is followed. All mail is lost to begin with, which is more than a run with few losses can show;
from then on every message arrives at once and in order. Writes under way succeed, the schedulers and the sender do what they have
begun, D allocates what P has started, fences are carried out, dead processes stay dead. When nothing moves, the clock moves by a beat; when that changes nothing either, time-outs expire one after the other. Such
a run must end with nothing kept on either side: no block, no transfer, no session with the dead, and an answer for the
request.

A time-out is no repair: what was lost has to be said again with a beat, and all of it with the same one. So between
time-outs one beat may change something, and a time-out is excused only by what no message can mend.
"""

from collections import deque
from collections.abc import Mapping, Sequence

from tests.explorer.anything import Anything, Key, Mail, Message, Move
from tests.explorer.scene import FIRST, Label
from tests.explorer.sides import DEAD, Known, Sides, WriteStep
from tests.explorer.words import sentence
from tests.explorer.writes import Stage

# What happens by itself, most urgent first.
URGENT: tuple[tuple[str, str], ...] = (
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
MAX_ARRIVALS = 1_000  # after one event; more would be a conversation that feeds itself
ENDLESS = "I5: from here on, messages answer each other for ever"


class UnrestError(Exception):
    """A fair run does not come to rest as it should."""


def check(
    anything: Anything, keys: Sequence[Key], mails: Sequence[Mail], numbers: Mapping[Key, int]
) -> tuple[int, str]:
    """Follow a fair run from each state, given by number, and what any message that may arrive there leads to.

    Returns:
        A state that does not come to rest and what is wrong; `(0, "")` if there is none.
    """
    fair = Fair(anything)
    beats = bytearray(
        [UNKNOWN] * len(keys)
    )  # of whom they change something, until a time-out or the end: a bit for each
    for start, mail in enumerate(mails):
        path: dict[int, Label | None] = {}
        here = start
        try:
            fair.converse(keys[start], mail)
            while beats[here] == UNKNOWN:
                if here in path:
                    return start, "I5: from here on, it goes round in circles for ever"
                key, path[here] = fair.after(keys[here])
                if key == keys[here]:
                    beats[here] = 0
                here = numbers[key]
        except UnrestError as error:
            return start, str(error)
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


class Fair:
    """Follows fair runs."""

    def __init__(self, anything: Anything) -> None:
        self._all = anything
        self._sides = anything.sides
        self._urgent: dict[tuple[str, int], list[tuple[int, Move]]] = {}
        self._patient: dict[tuple[str, int], list[tuple[int, Move]]] = {}
        self._heard: dict[Key, Mail] = {}  # state, writes apart → messages that have been let arrive there
        self._delivered: dict[tuple[Key, tuple[Message, ...]], Key] = {}

    def after(self, key: Key) -> tuple[Key, Label | None]:
        """Return the next state of a fair run, and the patient step that leads there, if it is one.

        The same state if nothing moves any more.

        Raises:
            UnrestError: it does not come to rest as it should.
        """
        there = self._hurry(key)
        if there != key:
            return there, None
        numbers, _ = self._all.unpack(key)
        known = self._sides.known(numbers)
        left: list[Label] = []
        for move in self._in_order(self._patient, PATIENT, numbers):
            fair = is_fair(move.label, known, self._sides)
            there = key if fair is None else self._do(key, move)
            if there == key or self._settle(there) == key:
                continue
            if fair:
                return there, move.label
            left.append(move.label)
        if left:
            raise bare(left[0])
        finish(known)
        return key, None

    def converse(self, key: Key, mail: Mail) -> None:
        """Let each message arrive, and what is sent in answer.

        Raises:
            UnrestError: they answer each other for ever.
        """
        numbers, writes = self._all.unpack(key)
        key -= writes  # which take no part
        new = mail & ~self._heard.get(key, 0)
        self._heard[key] = mail | self._heard.get(key, 0)
        for place, number in zip(self._all.places, numbers, strict=True) if new else ():
            for bit, move in self._all.arrivals(place, number) if number > DEAD else ():
                if new & bit and move.said:
                    self._deliver(key + move.delta, move.said)

    def _settle(self, key: Key) -> Key:
        for _ in range(MAX_ARRIVALS):
            there = self._hurry(key)
            if there == key:
                return key
            key = there
        raise UnrestError(ENDLESS)

    def _hurry(self, key: Key) -> Key:
        """Let the most urgent thing happen that happens by itself."""
        numbers, writes = self._all.unpack(key)
        known = self._sides.known(numbers)
        if writes:
            moves = [move for move in self._all.write_moves(numbers, writes) if happens(move.label, known)]
            for write in sorted(moves, key=lambda move: RANK[kind_of(move.label)]):
                there = self._do_write(key, write)
                if there != key:
                    return there
        for move in self._in_order(self._urgent, RANK, numbers):
            if happens(move.label, known):
                there = self._do(key, move)
                if there != key:
                    return there
        return key

    def _in_order(
        self,
        table: dict[tuple[str, int], list[tuple[int, Move]]],
        order: Mapping[tuple[str, str], int],
        numbers: Sequence[int],
    ) -> list[Move]:
        found: list[tuple[int, Move]] = []
        for place, number in zip(self._all.places, numbers, strict=True):
            if number <= DEAD:
                continue
            if (place, number) not in table:
                moves = self._all.moves_of(place, number)
                ranked = [(order.get(kind_of(move.label), -1), move) for move in moves]
                table[place, number] = [(rank, move) for rank, move in ranked if rank >= 0]
            found += table[place, number]
        return [move for _, move in sorted(found, key=lambda ranked: ranked[0])]

    def _do(self, key: Key, move: Move) -> Key:
        _, writes = self._all.unpack(key)
        after = writes if move.outcome is None else self._sides.writes.after(writes, move.outcome)
        return self._deliver(key + move.delta + after - writes, move.said)

    def _do_write(self, key: Key, write: WriteStep) -> Key:
        numbers, writes = self._all.unpack(key)
        move = self._all.sees(write, numbers)
        return self._deliver(key + move.delta + write.writes - writes, move.said)

    def _deliver(self, key: Key, sent: tuple[Message, ...]) -> Key:
        """Let everything arrive that has just been sent, and what is sent in answer."""
        first = key, sent
        if first in self._delivered:
            return self._delivered[first]
        under_way = deque(sent)
        for _ in range(MAX_ARRIVALS):
            if not under_way:
                self._delivered[first] = key
                return key
            message = under_way.popleft()
            numbers, _ = self._all.unpack(key)
            number = numbers[self._all.places.index(message[0])]
            if number > DEAD:
                move = self._all.arrival(number, message)
                key += move.delta
                under_way.extend(move.said)
        raise UnrestError(ENDLESS)


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
        asked = not sides.scene.cut_off and p.incarnation == FIRST[source] and d is not None and flow in d.asks
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
