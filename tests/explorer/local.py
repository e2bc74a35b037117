"""Runs one side, once per (state, event), and remembers what came of it.

States of a side are numbered, so that the states of the world are short tuples of numbers, and the real machines run
only for what has not been seen before.
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
from tests.explorer.scope import REASON, Event, Numbers, Submitted

NEWEST = 100  # see network.py
Side = PrefillSide | DecodeSide | Node


class Outcome(NamedTuple):
    """What one event did to one side."""

    number: int  # over both sides
    incarnation: int

    state: int
    # To which place, sender (negative: the side of a node that receives, to the one that sends), receiver, number of the body.
    sent: tuple[tuple[str, int, int, int], ...]
    seen: dict[int, int]  # newest sequence number accepted, by sender
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
        self._prints: dict[bytes, tuple[int, dict[int, int]]] = {}  # of machines that have been compared already

    def number(self, side: Side) -> int:
        return self._intern(side)[0]

    def body(self, number: int) -> Body:
        return self._bodies.known[number]

    def run(self, state: int, event: Event) -> Outcome:
        """Let `event` happen in `state`. A delivery names its message by sender, receiver, sequence number and body."""
        outcome = self._outcomes.get((state, event))
        if outcome is None:
            outcome = self._outcomes[state, event] = self.work_out(state, event)
        return outcome

    def work_out(self, state: int, event: Event) -> Outcome:
        """Do what `run` does, but do not remember it."""
        side: Side = pickle.loads(self._stored[state])  # noqa: S301  # our own bytes
        if event[0] == "deliver":
            _, sender, receiver, seq, body = event
            message = decode(encode(Message(abs(sender), receiver, seq, self._bodies.known[body])))
            event = ("deliver" if sender > 0 else "ask", message)
        submitted = side.apply(event)
        sent = tuple(
            (str(to), sign * m.sender, m.receiver, self._bodies.number(m))
            for sign, outbox in side.outboxes()
            for to, m in take_outputs(outbox)
        )
        number, seen = self._intern(side)
        fenced = event[1] if event[0] == "fence" else ""
        return Outcome(next(self._bodies.outcomes), side.incarnation, number, sent, seen, tuple(submitted), fenced)

    def _intern(self, side: Side) -> tuple[int, dict[int, int]]:
        for machine in side.machines():
            machine._sequence = Numbers()
        digest = blake2b(pickle.dumps(side), digest_size=16).digest()
        if (known := self._prints.get(digest)) is None:
            known = self._prints[digest] = self._compare(side)
        return known

    def _compare(self, side: Side) -> tuple[int, dict[int, int]]:
        seen: dict[int, int] = {}
        for session in side.sessions():
            if session._seen:
                seen[session.peer], session._seen = session._seen, NEWEST
        still(side)
        key = (freeze(side), side.key())
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self._stored)
            self._stored.append(pickle.dumps(side))
            self.facts.append(side.facts())
        return number, seen
