"""Runs one side, once per (state, event), and remembers what came of it.

States of a side are numbered, so that the states of the world are short tuples of numbers, and the real machines run
only for what has not been seen before.
"""

import pickle
from collections.abc import Hashable
from hashlib import blake2b
from itertools import count
from typing import NamedTuple, TypeAlias

from msgspec.structs import replace

from baton.kv_connector.protocol.messages import Body, Commit, Fail, Message, decode, encode
from tests.explorer.decode import DecodeSide
from tests.explorer.freeze import freeze, still
from tests.explorer.node import Scheduler, State
from tests.explorer.prefill import PrefillSide
from tests.explorer.scope import NAMES, Event, Numbers, Submitted, right

NEWEST = 100  # see network.py
Side = PrefillSide | DecodeSide
Contents: TypeAlias = tuple[tuple[int, tuple[str, ...]], ...]  # block, content per layer


class Outcome(NamedTuple):
    """What one event did to one side."""

    number: int  # over both sides
    incarnation: int

    state: int
    sent: tuple[tuple[str, int, int, int], ...]  # to which place, sender, receiver, number of the body
    seen: dict[int, int]  # newest sequence number accepted, by sender
    submitted: tuple[Submitted, ...]
    fenced: str  # engine that was destroyed, or ""
    effects: tuple[Event, ...]  # on the scheduler of a node that sends and receives


class Facts(NamedTuple):
    """What the world needs to know of a side's state."""

    incarnation: int
    events: tuple[Event, ...]
    problem: str
    at_rest: bool
    peers: frozenset[int | str]  # with which there is a session. P: incarnations, D: places
    source: Contents  # P: content of the source blocks
    lacks: frozenset[str]  # P: flows whose prompt it has not been given
    engines: tuple[str, ...]  # D: receiving engines that are alive
    asked: tuple[str, ...]  # D: transfers that have been asked for, by its predecessor as well
    asks: frozenset[str]  # D: flows that this process has asked for
    flows: frozenset[str]  # those that are open
    started: frozenset[str]  # D: transfers whose prompts P computes, as far as the scheduler has been told


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
            body = replace(body, reason="")
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
            message = Message(sender, receiver, seq, self._bodies.known[body])
            event = ("deliver", decode(encode(message)))
        submitted = side.apply(event)
        outbox = side.machine.outbox
        sent = tuple((str(to), m.sender, m.receiver, self._bodies.number(m)) for to, m in outbox)
        outbox.clear()
        effects = tuple(side.effects)
        side.effects.clear()
        number, seen = self._intern(side)
        fenced = event[1] if event[0] == "fence" else ""
        return Outcome(
            next(self._bodies.outcomes), side.machine.incarnation, number, sent, seen, tuple(submitted), fenced, effects
        )

    def _intern(self, side: Side) -> tuple[int, dict[int, int]]:
        side.machine._sequence = Numbers()  # type: ignore[assignment]  # see prefill.py
        digest = blake2b(pickle.dumps(side), digest_size=16).digest()
        if (known := self._prints.get(digest)) is None:
            known = self._prints[digest] = self._compare(side)
        return known

    def _compare(self, side: Side) -> tuple[int, dict[int, int]]:
        seen: dict[int, int] = {}
        for peer, session in side.sessions().items():
            if session._seen:
                seen[peer], session._seen = session._seen, NEWEST
        still(side)
        key = (freeze(side), side.key())
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self._stored)
            self._stored.append(pickle.dumps(side))
            self.facts.append(_facts(side))
        return number, seen


class Schedulers:
    """As `Local`: all states of the nodes' schedulers that have been reached."""

    def __init__(self, bodies: Bodies, scheduler: Scheduler) -> None:
        self.facts: list[Facts] = []
        self._bodies = bodies
        self._scheduler = scheduler
        self._states: list[State] = []
        self._numbers: dict[Hashable, int] = {}
        self._outcomes: dict[tuple[int, Event], Outcome] = {}
        self._after: dict[tuple[int, tuple[Event, ...]], int | None] = {}

    def initial(self) -> int:
        return self._number(self._scheduler.initial())

    def run(self, state: int, event: Event) -> Outcome:
        """Let an event happen that is the scheduler's own."""
        if (state, event) not in self._outcomes:
            after = self.react(state, (event,))
            assert after is not None, "its own events are those that may happen"
            self._outcomes[state, event] = Outcome(next(self._bodies.outcomes), 0, after, (), {}, (), "", ())
        return self._outcomes[state, event]

    def react(self, state: int, effects: tuple[Event, ...]) -> int | None:
        """Return the state after what a machine has done to it; `None` if the scheduler would not let it happen."""
        key = (state, effects)
        if key not in self._after:
            after: State | None = self._states[state]
            for effect in effects:
                after = after and self._scheduler.apply(after, effect)
            self._after[key] = None if after is None else self._number(after)
        return self._after[key]

    def _number(self, state: State) -> int:
        key = state.key()
        if key not in self._numbers:
            self._numbers[key] = len(self._states)
            self._states.append(state)
            nothing: frozenset[str] = frozenset()
            words = {"": "garbage", "right": right(NAMES[0])}
            contents = tuple((n, (words.get(block.content, block.content),)) for n, block in state.blocks.items())
            events, at_rest = tuple(self._scheduler.events(state)), self._scheduler.at_rest(state)
            self.facts.append(
                Facts(0, events, state.problem, at_rest, nothing, contents, nothing, (), (), nothing, nothing, nothing)
            )
        return self._numbers[key]


def _facts(side: Side) -> Facts:
    p, d = (side, None) if isinstance(side, PrefillSide) else (None, side)
    return Facts(
        incarnation=side.machine.incarnation,
        events=tuple(side.events()),
        problem=side.problem(),
        at_rest=side.at_rest(),
        peers=side.peers(),
        source=p.contents() if p else (),
        lacks=p.lacks() if p else frozenset(),
        engines=tuple(d.engines) if d else (),
        asked=d.asked() if d else (),
        asks=d.asks() if d else frozenset(),
        flows=frozenset(side.machine.transfers),
        started=d.started() if d else frozenset(),
    )
