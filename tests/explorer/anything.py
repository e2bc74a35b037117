"""Both sides and a network that may do anything.

`world.py` counts what the network does wrong; its states multiply with all that can be under way. Here nothing is
counted and nothing is under way. A message that has been sent may arrive at any time from then on: at once, late, never,
any number of times, before or after any other. Peers that live may be taken for dead, and D may beat, whenever they
like. That is more than any scope of `world.py` allows, so what holds here holds there, for every number of losses,
duplicates and reorderings.

A state is P, D and the writes under way. With it goes its *mail*: every message that was sent on some way to it. Where
two ways meet, their mail is put together, which again allows more than can happen, never less: a violation found here
may be one that cannot happen (and would show in no scope of `world.py`); one that can happen is found.

Sequence numbers are what this leaves out: a message that arrives is always taken for the newest. They save work; here
it shows that nothing else depends on them.
"""

from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

from tests.explorer.local import NEWEST, Contents, Outcome
from tests.explorer.scope import Event, Label, label
from tests.explorer.sides import DEAD, FIRST, D, P, Sides
from tests.explorer.writes import destroy, orphan

# P, D and the writes in one number: [ P + FEW | D + FEW | writes ], each of so many bits; the dead are negative.
BITS, FEW = 20, 8
UNIT = {P: 1 << 2 * BITS, D: 1 << BITS}
FIELD = (1 << BITS) - 1
ALWAYS = 1  # a message that is in every mail

Key: TypeAlias = int
Mail: TypeAlias = int  # one bit for each message
Message: TypeAlias = tuple[str, int, int, int]  # to which side, sender, receiver, number of the body


class Move(NamedTuple):
    """What one event at one side does."""

    label: Label
    delta: int  # to the key, writes apart
    sent: Mail
    said: tuple[Message, ...]  # the same, in order
    outcome: Outcome | None  # only where it changes the writes as well


class WriteMove(NamedTuple):
    """What may happen to a write: the writes then, and what one side sees of it."""

    label: Label
    writes: int
    side: str
    event: Event


class Events:
    """What may happen in one state of one side, as far as the mail has asked for it."""

    def __init__(self) -> None:
        self.tried: Mail = 0
        self.arrivals: list[tuple[Mail, Move]] = []
        # The same and what needs no message, without names. `needs`: any of these messages will do.
        self.echoes: dict[Mail, Mail] = {}  # sent → needs; nothing changes
        self.changes: dict[tuple[int, Mail], Mail] = {}  # delta, sent → needs
        self.loud: list[tuple[int, Mail, Outcome]] = []  # delta, sent; the writes change as well

    def add(self, needs: Mail, move: Move) -> None:
        """Note one event."""
        if move.outcome is not None:
            self.loud.append((move.delta, move.sent, move.outcome))
        elif move.delta:
            self.changes[move.delta, move.sent] = self.changes.get((move.delta, move.sent), 0) | needs
        elif move.sent:
            self.echoes[move.sent] = self.echoes.get(move.sent, 0) | needs


def pack(p: int, d: int, writes: int) -> Key:
    """Return a state as one number."""
    return (p + FEW) * UNIT[P] + (d + FEW) * UNIT[D] + writes


def unpack(key: Key) -> tuple[int, int, int]:
    """Return the numbers of P's state, D's state and the writes."""
    return (key >> 2 * BITS) - FEW, (key >> BITS & FIELD) - FEW, key & FIELD


class Anything:
    """All that can happen."""

    def __init__(self, sides: Sides) -> None:
        self.sides = sides
        self.messages: list[Message] = [("", 0, 0, 0)]  # the first one is none: what needs no message needs this
        self._bits: dict[Message, Mail] = {}
        self._moves: dict[tuple[str, int], list[Move]] = {}
        self._known_events: dict[tuple[str, int], Events] = {}
        self._seen: dict[tuple[str, int, Event], Move] = {}
        self._after_crash: dict[tuple[str, int, Contents], int] = {}
        self._write_moves: dict[tuple[int, object, object], list[WriteMove]] = {}

    def initial(self) -> Key:
        """Both processes have just started."""
        return pack(self.sides.fresh_p(), self.sides.fresh_d(), 0)

    def successors(self, key: Key, mail: Mail) -> tuple[Mail, list[tuple[Key, Mail]]]:
        """Return the mail with all that is said without a change, and every state that can follow, with its mail."""
        p, d, writes = unpack(key)
        both: list[Events] = []
        before = -1
        while before != mail:
            before = mail
            both = [self._events(side, number, mail) for side, number in ((P, p), (D, d)) if number > DEAD]
            for events in both:
                for sent, needs in events.echoes.items():
                    if mail & needs:
                        mail |= sent
        found = []
        for events in both:
            found += [(key + delta, mail | sent) for (delta, sent), needs in events.changes.items() if mail & needs]
            for delta, sent, outcome in events.loud:
                if not (outcome.submitted and self.sides.is_sending(writes)):
                    found.append((key + delta + self.sides.writes.after(writes, outcome) - writes, mail | sent))
        if writes:
            for _, after, side, event in self.write_moves(p, d, writes):
                move = self.sees(side, p if side == P else d, event)
                found.append((key + move.delta + after - writes, mail | move.sent))
        found += [(after, mail) for _, after in self._crashes(p, d, writes)]
        return mail, found

    def label(self, key: Key, mail: Mail, after: Key) -> Label:
        """Name an event that leads from a state with this mail to another one."""
        p, d, writes = unpack(key)
        for side, number in ((P, p), (D, d)):
            for move in self.moves_of(side, number) if number > DEAD else ():
                new = writes if move.outcome is None else self.sides.writes.after(writes, move.outcome)
                if key + move.delta + new - writes == after:
                    return move.label
            for needs, move in self._events(side, number, mail).arrivals if number > DEAD else ():
                if mail & needs and key + move.delta == after:
                    return move.label
        for what, new, side, event in self.write_moves(p, d, writes):
            if key + self.sees(side, p if side == P else d, event).delta + new - writes == after:
                return what
        return next(what for what, there in self._crashes(p, d, writes) if there == after)

    def moves_of(self, side: str, number: int) -> list[Move]:
        """What a living side may do of itself."""
        key = (side, number)
        if key not in self._moves:
            steps = self.sides.steps_of(side, number)
            moves = [self._move(step.label, side, number, step.outcome) for step in steps]
            self._moves[key] = [move for move in moves if move.delta or move.sent or move.outcome]
        return self._moves[key]

    def write_moves(self, p: int, d: int, writes: int) -> list[WriteMove]:
        """What may happen to the writes under way."""
        at_p, at_d = self.sides.facts(P, p), self.sides.facts(D, d)
        key = (writes, at_p and at_p.source, at_d and at_d.engines)
        if key not in self._write_moves:
            self._write_moves[key] = [WriteMove(*step) for step in self.sides.write_steps(writes, at_p, at_d)]
        return self._write_moves[key]

    def sees(self, side: str, number: int, event: Event) -> Move:
        """What an end of a write does to a side."""
        key = (side, number, event)
        if key not in self._seen:
            nothing = Move(label("", ""), 0, 0, (), None)
            self._seen[key] = self.react(side, number, event) if side else nothing
        return self._seen[key]

    def react(self, side: str, number: int, event: Event) -> Move:
        """What any event does to a side."""
        return self._move(label(side, *event), side, number, self.sides.local(side).run(number, event))

    def arrival(self, number: int, message: Message) -> Move:
        """What a message does in a state of the side that it goes to."""
        to, sender, receiver, body = message
        what = label("net", "deliver", to, sender, receiver, self.sides.bodies.known[body], False)
        outcome = self.sides.local(to).run(number, ("deliver", sender, receiver, NEWEST + 1, body))
        return self._move(what, to, number, outcome)

    def _move(self, what: Label, side: str, number: int, outcome: Outcome) -> Move:
        said = tuple((D if side == P else P, *sent) for sent in outcome.sent)
        mail = 0
        for message in said:
            if message not in self._bits:
                self._bits[message] = 1 << len(self.messages)
                self.messages.append(message)
            mail |= self._bits[message]
        touches = outcome if outcome.submitted or outcome.fenced else None
        return Move(what, (outcome.state - number) * UNIT[side], mail, said, touches)

    def _events(self, side: str, number: int, mail: Mail) -> Events:
        events = self._known_events.get((side, number))
        if events is None:
            events = self._known_events[side, number] = Events()
            events.tried = ALWAYS
            for move in self.moves_of(side, number):
                events.add(ALWAYS, move)
        if untried := mail & ~events.tried:
            events.tried |= untried
            for bit in split(untried):
                message = self.messages[bit.bit_length() - 1]
                if message[0] == side:
                    move = self.arrival(number, message)
                    events.arrivals.append((bit, move))
                    events.add(bit, move)
        return events

    def _crashes(self, p: int, d: int, writes: int) -> Iterator[tuple[Label, Key]]:
        sides = self.sides
        if p == DEAD:
            yield label(P, "restart"), pack(sides.fresh_p(FIRST[P] + 1), d, writes)
        elif sides.scene.crashes_p and sides.p.facts[p].incarnation == FIRST[P]:
            yield label(P, "crash"), pack(DEAD, d, self._left(P, writes, sides.p.facts[p].source))
        if d <= DEAD:
            yield label(D, "restart"), pack(p, sides.fresh_d(FIRST[D] + 1, d), writes)
        elif sides.scene.crashes_d and sides.d.facts[d].incarnation == FIRST[D]:
            yield label(D, "crash"), pack(p, sides.die(d), self._left(D, writes, ()))

    def _left(self, died: str, writes: int, source: Contents) -> int:
        """Return the writes after a side has died."""
        key = (died, writes, source)
        if key not in self._after_crash:
            known = self.sides.writes.known[writes]
            left = orphan(known, source) if died == P else destroy(known, lambda _: False)
            self._after_crash[key] = self.sides.writes.number(left)
        return self._after_crash[key]


def split(mail: Mail) -> Iterator[Mail]:
    """Return the bits of a mail one by one."""
    while mail:
        bit = mail & -mail
        yield bit
        mail ^= bit
