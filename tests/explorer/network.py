"""Messages under way, in any order, and what of their sequence numbers matters.

A receiver compares the numbers of one sender with the newest that it has accepted and with nothing else. So the newest
accepted one is called `NEWEST` in every state, and the others are counted from there without gaps.
"""

from collections.abc import Iterable
from typing import NamedTuple

from baton.kv_connector.protocol.messages import Commit, Fail
from tests.explorer.local import NEWEST, Bodies, Outcome
from tests.explorer.scope import Event, Label, label

ONCE, TWICE, LATE_COPY = 0, 1, 2  # how often a message will still arrive; a late copy may arrive at any time


class InFlight(NamedTuple):
    """One message under way. Delivered to whatever process listens at the address by then."""

    to: str  # place
    sender: int
    seq: int
    receiver: int  # incarnation that it is meant for
    body: int  # number of the body, see local.py
    copies: int


class Delivery(NamedTuple):
    """One message that may arrive next."""

    label: Label
    to: str
    event: Event
    overtaken: int  # older messages of the same sender that it leaves behind
    net: int  # what is left


class Options(NamedTuple):
    """What can happen to the messages under way."""

    busy: int  # messages, late copies apart
    deliveries: list[Delivery]
    losses: list[tuple[Label, int, InFlight]]
    duplicates: list[tuple[Label, int]]


class Network:
    """All contents of the network that have been reached, by number; 0 is empty."""

    def __init__(self, bodies: Bodies) -> None:
        self._bodies = bodies
        self._known: list[tuple[InFlight, ...]] = []
        self._numbers: dict[tuple[InFlight, ...], int] = {}
        self._options: dict[int, Options] = {}
        self._after: dict[tuple[int, int, int], int] = {}
        self._number([])

    def after(self, net: int, side: str, outcome: Outcome, decode: int) -> int:
        """Return the network after an event at `side`, which may have accepted a message and sent others.

        `decode` is the live decode process, 0 if there is none. Of the mail for its predecessor one outcome is kept.
        """
        key = (net, outcome.number, decode)
        after = self._after.get(key)
        if after is None:
            messages = renumber(self._known[net], side, outcome.seen)
            queued = side == "P" and any(m.to == "D" and m.receiver != decode for m in messages)
            sent = [
                new for new in outcome.sent if side == "D" or new[2] == decode or (self._ends(new[3]) and not queued)
            ]
            after = self._after[key] = self._number(send(messages, sent))
        return after

    def crashed(self, net: int) -> list[int]:
        """Return the networks after D has died: one outcome for it stays in a sender's queue, or none does."""
        rest = [m for m in self._known[net] if m.to == "P"]
        mail = [m for m in self._known[net] if m.to == "D" and self._ends(m.body)]
        return [self._number(rest), *(self._number([*rest, m]) for m in mail)]

    def restarted(self, net: int, side: str) -> int:
        """Return the network after a new process has come up at `side`, which has seen nothing yet."""
        return self._number(renumber(self._known[net], side, {}))

    def options(self, net: int) -> Options:
        """Return what can happen to the messages under way."""
        options = self._options.get(net)
        if options is None:
            options = self._options[net] = self._find_options(self._known[net])
        return options

    def _ends(self, body: int) -> bool:
        return isinstance(self._bodies.known[body], Commit | Fail)

    def _find_options(self, messages: tuple[InFlight, ...]) -> Options:
        options = Options(sum(m.copies != LATE_COPY for m in messages), [], [], [])
        older: dict[tuple[str, int], int] = {}
        for message in messages:
            rest = [m for m in messages if m is not message]
            what = (message.to, message.sender, message.receiver, self._bodies.known[message.body])
            overtaken = 0
            if message.copies != LATE_COPY:
                overtaken = older.get(message[:2], 0)
                older[message[:2]] = overtaken + 1
            event = ("deliver", message.sender, message.receiver, message.seq, message.body)
            left = [*rest, message._replace(copies=LATE_COPY)] if message.copies == TWICE else rest
            arrives = label("net", "deliver", *what, message.copies == LATE_COPY)
            options.deliveries.append(Delivery(arrives, message.to, event, overtaken, self._number(left)))
            if message.copies == ONCE:
                twice = self._number([*rest, message._replace(copies=TWICE)])
                options.duplicates.append((label("net", "duplicate", *what), twice))
            options.losses.append((label("net", "lose", *what), self._number(rest), message))
        return options

    def _number(self, messages: Iterable[InFlight]) -> int:
        key = tuple(sorted(messages))
        if key not in self._numbers:
            self._numbers[key] = len(self._known)
            self._known.append(key)
        return self._numbers[key]


def renumber(net: Iterable[InFlight], to: str, seen: dict[int, int]) -> list[InFlight]:
    """Number again what is under way to one side, after it has accepted up to `seen` by sender.

    A message that is older than the newest accepted one will never be acted on: it is as good as lost. Late copies
    stay, since the receiver may have forgotten by then what it has seen.
    """
    kept = [message for message in net if message.to != to]
    by_sender: dict[int, list[InFlight]] = {}
    for message in sorted(net):
        if message.to == to:
            by_sender.setdefault(message.sender, []).append(message)
    for sender, messages in by_sender.items():
        newest = seen.get(sender, 0)
        old = [m for m in messages if m.seq <= newest and m.copies == LATE_COPY]
        new = [m for m in messages if m.seq > newest]
        first = NEWEST - len(old) + (bool(old) and old[-1].seq == newest)
        kept += [m._replace(seq=first + i) for i, m in enumerate(old)]
        kept += [m._replace(seq=NEWEST + 1 + i) for i, m in enumerate(new)]
    return kept


def send(net: list[InFlight], sent: Iterable[tuple[str, int, int, int]]) -> list[InFlight]:
    """Put new messages `(to, sender, receiver, body)` behind everything of their sender."""
    messages = list(net)
    for to, sender, receiver, body in sent:
        last = max((m.seq for m in messages if m.to == to and m.sender == sender), default=NEWEST)
        messages.append(InFlight(to, sender, max(last, NEWEST) + 1, receiver, body, ONCE))
    return messages
