"""Whether every state comes to rest once nothing bad happens any more (I5), where nothing is under way.

As `rest.py`, for the states of `anything.py`: from each, one fair run is followed. All mail is lost to begin with, which
is more than a run with few losses can show. From then on every message arrives at once and in order.
"""

from collections import deque
from collections.abc import Mapping, Sequence

from tests.explorer.anything import Anything, Key, Message, Move, WriteMove
from tests.explorer.rest import PATIENT, RANK, UnrestError, bare, finish, happens, is_fair, kind_of
from tests.explorer.scope import Label
from tests.explorer.sides import DEAD

MAX_ARRIVALS = 1_000  # after one event; more would be a conversation that feeds itself
ENDLESS = "I5: from here on, messages answer each other for ever"


class Fair:
    """Follows fair runs."""

    def __init__(self, anything: Anything) -> None:
        self._all = anything
        self._sides = anything.sides
        self._urgent: dict[tuple[str, int], list[tuple[int, Move]]] = {}
        self._patient: dict[tuple[str, int], list[tuple[int, Move]]] = {}

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
        after = self._all.after(key, move)
        return key if after is None else self._deliver(after, move.said)

    def _do_write(self, key: Key, write: WriteMove) -> Key:
        numbers, writes = self._all.unpack(key)
        move = self._all.sees(write, numbers)
        after = self._all.after(key + write.writes - writes, move)
        return key if after is None else self._deliver(after, move.said)

    def _deliver(self, key: Key, sent: tuple[Message, ...]) -> Key:
        """Let everything arrive that has just been sent, and what is sent in answer."""
        under_way = deque(sent)
        for _ in range(MAX_ARRIVALS):
            if not under_way:
                return key
            message = under_way.popleft()
            numbers, _ = self._all.unpack(key)
            number = numbers[self._all.places.index(message[0])]
            if number > DEAD:
                move = self._all.arrival(number, message)
                key = self._all.after(key, move) or key
                under_way.extend(move.said)
        raise UnrestError(ENDLESS)
