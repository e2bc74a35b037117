"""Whether every state comes to rest once nothing bad happens any more (I5), where nothing is under way.

As `rest.py`, for the states of `anything.py`: from each, one fair run is followed. All mail is lost to begin with, which
is more than a run with few losses can show. From then on every message arrives at once and in order.
"""

from collections import deque

from tests.explorer.anything import Anything, Key, Message, Move, WriteMove, unpack
from tests.explorer.rest import PATIENT, RANK, comes_late, rests
from tests.explorer.scope import Label
from tests.explorer.sides import DEAD, D, P

MAX_ARRIVALS = 1_000  # after one event; more would be a conversation that feeds itself


class EndlessError(Exception):
    """From some state on the sides never come to rest."""


class Fair:
    """Follows fair runs."""

    def __init__(self, anything: Anything) -> None:
        self._all = anything
        self._sides = anything.sides
        self._urgent: dict[tuple[str, int], list[tuple[int, Move]]] = {}
        self._patient: dict[tuple[str, int], list[tuple[int, Move]]] = {}

    def after(self, key: Key) -> Key:
        """Return the next state of a fair run; the same if nothing moves any more.

        Raises:
            EndlessError: messages answer each other without an end.
        """
        there = self._hurry(key)
        if there != key:
            return there
        p, d, _ = unpack(key)
        waiting = self._of(self._patient, P, p) + self._of(self._patient, D, d)
        for _, move in sorted(waiting, key=lambda ranked: ranked[0]):
            if self._is_fair(move.label, p, d):
                there = self._do(key, move)
                if there != key and self._settle(there) != key:
                    return there
        return key

    def problem(self, key: Key) -> str:
        """Say what is kept or waited for in a state in which nothing moves any more."""
        p, d, _ = unpack(key)
        is_over = rests(self._sides.facts(P, p), self._sides.facts(D, d))
        return "" if is_over else "I5: from here on, something is kept or waited for for ever"

    def _settle(self, key: Key) -> Key:
        for _ in range(MAX_ARRIVALS):
            there = self._hurry(key)
            if there == key:
                return key
            key = there
        raise EndlessError

    def _hurry(self, key: Key) -> Key:
        """Let the most urgent thing happen that happens by itself."""
        p, d, writes = unpack(key)
        if writes:
            moves = [m for m in self._all.write_moves(p, d, writes) if not comes_late(m.label)]
            for write in sorted(moves, key=lambda move: RANK[move.label[:2]]):
                there = self._do_write(key, write)
                if there != key:
                    return there
        local = self._of(self._urgent, P, p) + self._of(self._urgent, D, d)
        for _, move in sorted(local, key=lambda ranked: ranked[0]):
            there = self._do(key, move)
            if there != key:
                return there
        return key

    def _of(
        self, table: dict[tuple[str, int], list[tuple[int, Move]]], side: str, number: int
    ) -> list[tuple[int, Move]]:
        if number <= DEAD:
            return []
        if (side, number) not in table:
            order = RANK if table is self._urgent else {kind: rank for rank, kind in enumerate(PATIENT)}
            moves = self._all.moves_of(side, number)
            table[side, number] = [(order[m.label[:2]], m) for m in moves if m.label[:2] in order]
        return table[side, number]

    def _is_fair(self, label: Label, p: int, d: int) -> bool:
        silence = ("silence", *label.arguments)
        return label.what != "silence" or not self._sides.talks(label.where, silence, p, d)

    def _do(self, key: Key, move: Move) -> Key:
        writes = unpack(key)[2]
        after = writes if move.outcome is None else self._sides.writes.after(writes, move.outcome)
        return self._deliver(key + move.delta + after - writes, move.said)

    def _do_write(self, key: Key, write: WriteMove) -> Key:
        p, d, writes = unpack(key)
        move = self._all.sees(write.side, p if write.side == P else d, write.event)
        return self._deliver(key + move.delta + write.writes - writes, move.said)

    def _deliver(self, key: Key, sent: tuple[Message, ...]) -> Key:
        """Let everything arrive that has just been sent, and what is sent in answer."""
        under_way = deque(sent)
        for _ in range(MAX_ARRIVALS):
            if not under_way:
                return key
            message = under_way.popleft()
            p, d, _ = unpack(key)
            number = p if message[0] == P else d
            if number > DEAD:
                move = self._all.arrival(number, message)
                key += move.delta
                under_way.extend(move.said)
        raise EndlessError
