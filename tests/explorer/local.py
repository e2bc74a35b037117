"""Runs one side, once per (state, event), and remembers what came of it.

States of a side are numbered, so that a state of all of them is one short number, and the real machines run only for what has
not been seen before.
"""

import pickle
from collections.abc import Hashable
from hashlib import blake2b
from itertools import count
from typing import NamedTuple

from msgspec.structs import replace

from baton.kv_connector.protocol.messages import Body, Commit, Fail, Message, decode, encode
from baton.kv_connector.worker_side.take_outputs import take_outputs
from tests.explorer.decode import DecodeSide
from tests.explorer.freeze import freeze, still
from tests.explorer.node import Node
from tests.explorer.prefill import PrefillSide
from tests.explorer.rank import Facts
from tests.explorer.scene import NEWEST, REASON, Event, Submitted

Side = PrefillSide | DecodeSide | Node
NO_STATE = -1


class Outcome(NamedTuple):
    """What one event did to one side."""

    number: int  # over both sides
    incarnation: int

    state: int
    # To which place, sender (negative: the side of a node that receives, to the one that sends), receiver, number of the body.
    sent: tuple[tuple[str, int, int, int], ...]
    submitted: tuple[Submitted, ...]
    fenced: str  # engine that was destroyed, or ""


class Bodies:
    """Numbers for message bodies and outcomes; both sides share them."""

    def __init__(self) -> None:
        self.known: list[Body] = []
        self.outcomes = count()
        self._numbers: dict[bytes, int] = {}

    def number(self, message: Message) -> int:
        body = message.body
        if isinstance(body, Commit):
            body = replace(body, timings_s={})
        elif isinstance(body, Fail):
            body = replace(body, reason=REASON)
        key = encode(Message(1, 1, 1, body))
        if key not in self._numbers:
            self._numbers[key] = len(self.known)
            self.known.append(body)
        return self._numbers[key]


class Local:
    """All states of one side that have been reached."""

    def __init__(self, bodies: Bodies) -> None:
        self.facts: list[Facts] = []
        self._bodies = bodies
        self._stored: list[bytes] = []
        self._numbers: dict[Hashable, int] = {}
        self._outcomes: dict[tuple[int, Event], Outcome] = {}
        self._prints: dict[bytes, int] = {}  # of machines that have been compared already
        self._unchanged: dict[int, bytes] = {}  # by state, the print of one that has just been loaded
        self._at_hand: tuple[int, Side | None] = (NO_STATE, None)

    def run(self, state: int, event: Event) -> Outcome:
        """Let `event` happen in `state`. A delivery names its message by sender, receiver and body."""
        outcome = self._outcomes.get((state, event))
        if outcome is None:
            outcome = self._outcomes[state, event] = self.work_out(state, event)
        return outcome

    def work_out(self, state: int, event: Event) -> Outcome:
        """Do what `run` does, but do not remember it."""
        side = self._take(state)
        if event[0] == "deliver":
            _, sender, receiver, body = event
            message = decode(encode(Message(abs(sender), receiver, NEWEST, self._bodies.known[body])))
            event = ("deliver" if sender > 0 else "ask", message)
        submitted = side.apply(event)
        sent = tuple(
            (str(to), sign * m.sender, m.receiver, self._bodies.number(m))
            for sign, outbox in side.outboxes()
            for to, m in take_outputs(outbox)
        )
        fenced = event[1] if event[0] == "fence" else ""
        number = self.number(side)
        return Outcome(next(self._bodies.outcomes), side.incarnation, number, sent, tuple(submitted), fenced)

    def number(self, side: Side) -> int:
        """Return the number of the state that a side is in."""
        for session in side.sessions():
            session._seen = 0
        seen = _print_of(side)
        if (known := self._prints.get(seen)) is None:
            known = self._prints[seen] = self._compare(side)
        if seen == self._unchanged.get(known):
            self._at_hand = known, side
        return known

    def _take(self, state: int) -> Side:
        """Return a side in a state: the last one, if nothing has happened to it there."""
        (at, side), self._at_hand = self._at_hand, (NO_STATE, None)
        if side is None or at != state:
            side = pickle.loads(self._stored[state])  # noqa: S301  # our own bytes
            if state not in self._unchanged:
                self._unchanged[state] = _print_of(side)
        return side

    def _compare(self, side: Side) -> int:
        key = (freeze(side), side.key())
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self._stored)
            still(side)
            self._stored.append(pickle.dumps(side))
            self.facts.append(side.facts())
        return number


def _print_of(side: Side) -> bytes:
    return blake2b(pickle.dumps(side), digest_size=16).digest()
