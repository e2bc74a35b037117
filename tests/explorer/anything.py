"""All ranks and a network that may do anything.

Nothing is under way and nothing is counted. A message that has been sent may arrive at any time from then on: at once, late, never,
any number of times, before or after any other. Peers that live may be taken for dead, and D may beat, whenever they like. So what
holds here holds for every number of losses, duplicates and reorderings.

A state is the ranks and the writes under way. With it goes its *mail*: every message that was sent on some way to it. Where
two ways meet, their mail is put together, which allows more than can happen, never less: a violation found here
may be one that cannot happen; one that can happen is found.

Sequence numbers are what this leaves out: a message that arrives is always taken for the newest. They save work; here
it shows that nothing else depends on them.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeAlias

from tests.explorer.local import Outcome
from tests.explorer.scene import FIRST, Event, Label, label
from tests.explorer.sides import DEAD, Sides, WriteStep

# The ranks and the writes in one number: [ first + FEW | second + FEW | … | writes ], of equal size; the dead are
# negative.
BITS, FEW = 64, 8
ALWAYS = 1  # a message that is in every mail

Key: TypeAlias = int
Mail: TypeAlias = int  # one bit for each message
Message: TypeAlias = tuple[str, int, int, int]  # to which place, sender, receiver, number of the body


class Move(NamedTuple):
    """What one event at one side does."""

    label: Label
    delta: int  # to the key, writes apart
    sent: Mail
    said: tuple[Message, ...]  # the same, in order
    outcome: Outcome | None  # only where it changes the writes as well


NOTHING = Move(label("", ""), 0, 0, (), None)


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
        if move.outcome is not None:
            self.loud.append((move.delta, move.sent, move.outcome))
        elif move.delta:
            self.changes[move.delta, move.sent] = self.changes.get((move.delta, move.sent), 0) | needs
        elif move.sent:
            self.echoes[move.sent] = self.echoes.get(move.sent, 0) | needs


class Anything:
    """All that can happen."""

    def __init__(self, sides: Sides) -> None:
        self.sides = sides
        self.places = sides.places
        self._ruled_out = sides.scene.ruled_out
        self.messages: list[Message] = [("", 0, 0, 0)]  # the first one is none: what needs no message needs this
        self._bits: dict[Message, Mail] = {}
        self._moves: dict[tuple[str, int], list[Move]] = {}
        self._known_events: dict[tuple[str, int], Events] = {}
        self._arrivals: dict[tuple[int, Message], Move] = {}
        self._seen: dict[tuple[str, int, Event], Move] = {}
        self._after_crash: dict[tuple[str, int, int], int] = {}
        self._write_moves: dict[tuple[object, ...], list[WriteStep]] = {}
        width = BITS // (len(self.places) + 1)
        self._field = (1 << width) - 1
        self._shifts = [width * place for place in range(len(self.places), 0, -1)]
        self.unit = {place: 1 << shift for place, shift in zip(self.places, self._shifts, strict=True)}

    def pack(self, numbers: Sequence[int], writes: int) -> Key:
        return sum((number + FEW) << shift for number, shift in zip(numbers, self._shifts, strict=True)) + writes

    def unpack(self, key: Key) -> tuple[list[int], int]:
        """Return the number of each rank's state, and that of the writes."""
        field = self._field
        return [(key >> shift & field) - FEW for shift in self._shifts], key & field

    def fits(self) -> bool:
        """Whether every number so far has had room in its field."""
        sides = self.sides
        return max(len(sides.p.facts) + FEW, len(sides.d.facts) + FEW, len(sides.writes.known)) <= self._field

    def initial(self) -> Key:
        """All processes have just started."""
        return self.pack([self.sides.fresh(place) for place in self.places], 0)

    def successors(self, key: Key, mail: Mail) -> tuple[Mail, list[tuple[Key, Mail]]]:
        """Return the mail with all that is said without a change, and every state that can follow, with its mail."""
        numbers, writes = self.unpack(key)
        living = [(place, number) for place, number in zip(self.places, numbers, strict=True) if number > DEAD]
        everyone: list[Events] = []
        before = -1
        while before != mail:
            before = mail
            everyone = [self._events(place, number, mail) for place, number in living]
            for events in everyone:
                for sent, needs in events.echoes.items():
                    if mail & needs:
                        mail |= sent
        found = []
        for (place, _), events in zip(living, everyone, strict=True):
            found += [(key + delta, mail | sent) for (delta, sent), needs in events.changes.items() if mail & needs]
            for delta, sent, outcome in events.loud:
                if not (outcome.submitted and self.sides.is_sending(writes, place)):
                    found.append((key + delta + self.sides.writes.after(writes, outcome) - writes, mail | sent))
        if writes:
            for write in self.write_moves(numbers, writes):
                move = self.sees(write, numbers)
                found.append((key + move.delta + write.writes - writes, mail | move.sent))
        found += [(after, mail) for _, after in self._crashes(numbers, writes)]
        return mail, found

    def label(self, key: Key, mail: Mail, after: Key) -> Label:
        """Name an event that leads from a state with this mail to another one."""
        numbers, writes = self.unpack(key)
        for place, number in zip(self.places, numbers, strict=True):
            for move in self.moves_of(place, number) if number > DEAD else ():
                new = writes if move.outcome is None else self.sides.writes.after(writes, move.outcome)
                if key + move.delta + new - writes == after:
                    return move.label
            for needs, move in self._events(place, number, mail).arrivals if number > DEAD else ():
                if mail & needs and key + move.delta == after:
                    return move.label
        for write in self.write_moves(numbers, writes):
            if key + self.sees(write, numbers).delta + write.writes - writes == after:
                return write.label
        return next(what for what, there in self._crashes(numbers, writes) if there == after)

    def moves_of(self, side: str, number: int) -> list[Move]:
        """What a living side may do of itself; no live peer is taken for dead where that is ruled out."""
        key = (side, number)
        if key not in self._moves:
            events = self.sides.local(side).facts[number].events
            moves = [self._react(side, number, event) for event in events if event[0] not in self._ruled_out]
            self._moves[key] = [move for move in moves if move.delta or move.sent or move.outcome]
        return self._moves[key]

    def write_moves(self, numbers: Sequence[int], writes: int) -> list[WriteStep]:
        """What may happen to the writes under way."""
        known = self.sides.known(numbers)
        key = (writes, *(facts and (facts.source or facts.engines) for facts in known.values()))
        if key not in self._write_moves:
            self._write_moves[key] = list(self.sides.write_steps(writes, known))
        return self._write_moves[key]

    def sees(self, write: WriteStep, numbers: Sequence[int]) -> Move:
        """What an end of a write does to the rank that it concerns."""
        if not write.side:
            return NOTHING
        number = numbers[self.places.index(write.side)]
        key = (write.side, number, write.event)
        if key not in self._seen:
            self._seen[key] = self._react(*key)
        return self._seen[key]

    def arrivals(self, side: str, number: int) -> list[tuple[Mail, Move]]:
        """What each message does in a state of a living side, of those that have been tried there."""
        return self._known_events[side, number].arrivals

    def arrival(self, number: int, message: Message) -> Move:
        """What a message does in a state of the side that it goes to."""
        if (number, message) in self._arrivals:
            return self._arrivals[number, message]
        to, sender, receiver, body = message
        what = label("net", "deliver", to, sender, receiver, self.sides.bodies.known[body])
        outcome = self.sides.local(to).run(number, ("deliver", sender, receiver, body))
        move = self._arrivals[number, message] = self._move(what, to, number, outcome)
        return move

    def _react(self, side: str, number: int, event: Event) -> Move:
        return self._move(label(side, *event), side, number, self.sides.local(side).run(number, event))

    def _move(self, what: Label, side: str, number: int, outcome: Outcome) -> Move:
        mail = 0
        for message in outcome.sent:
            if message not in self._bits:
                self._bits[message] = 1 << len(self.messages)
                self.messages.append(message)
            mail |= self._bits[message]
        touches = outcome if outcome.submitted or outcome.fenced else None
        return Move(what, (outcome.state - number) * self.unit[side], mail, outcome.sent, touches)

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

    def _crashes(self, numbers: Sequence[int], writes: int) -> Iterator[tuple[Label, Key]]:
        sides = self.sides
        for place, number in zip(self.places, numbers, strict=True):
            rest = self.pack([0 if other == place else n for other, n in zip(self.places, numbers, strict=True)], 0)
            if number <= DEAD:
                fresh = sides.fresh(place, FIRST[place] + 1, number)
                yield label(place, "restart"), rest + fresh * self.unit[place] + writes
            elif sides.may_crash(place) and sides.local(place).facts[number].incarnation == FIRST[place]:
                key = (place, number, writes)
                if key not in self._after_crash:
                    self._after_crash[key] = sides.after_crash(writes, place, number)
                dead = sides.die(place, number)
                yield label(place, "crash"), rest + dead * self.unit[place] + self._after_crash[key]


def split(mail: Mail) -> Iterator[Mail]:
    while mail:
        bit = mail & -mail
        yield bit
        mail ^= bit
