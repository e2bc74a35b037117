"""One end of the conversation between one P rank and one D rank.

A session stamps outgoing messages and decides which incoming ones may be believed. It knows nothing of transfers.
"""

from collections.abc import Iterator
from enum import IntEnum

from baton.kv_connector.protocol.messages import Body, Hello, Introduce, Message, Refuse
from baton.kv_connector.telemetry.refusals import Refused


class SessionState(IntEnum):
    """How far the two ends know each other."""

    NEW = 0  # our Hello is not answered yet
    OPEN = 1  # both Hellos exchanged, layouts fit
    REFUSED = 2  # the pair must not exchange KV


class Session:
    """Incarnations, sequence numbers and liveness of one peer."""

    def __init__(self, incarnation: int, sequence: Iterator[int], now: float) -> None:
        """`sequence` is shared by all sessions of a process, so that a session made again never counts backwards."""
        self.incarnation = incarnation  # ours
        self.peer = 0  # theirs; 0: not heard of yet
        self.state = SessionState.NEW
        self.reason = ""  # why it was refused
        self.last_heard = now  # s
        self.broken_since: float | None = None  # s; the connection broke, and nothing has been heard since
        self._sequence = sequence
        self._seen = 0

    def stamp(self, body: Body) -> Message:
        return Message(self.incarnation, self.peer, next(self._sequence), body)

    def is_restart(self, message: Message) -> bool:
        """Whether the peer at this address is another process than the one we knew."""
        return self.peer not in (0, message.sender)

    def accept(self, message: Message, now: float) -> Refused | None:
        """Why a message is not acted on; `None` if it is, and its sender lives.

        A message meant for our predecessor, from the peer's predecessor, or overtaken by a newer one is not acted on. A
        `Hello`, `Refuse` or `Introduce` may come from a stranger: it is how a new incarnation shows itself. Late mail
        of a dead process may so bring it back for a moment; its successor's next `Introduce` ends that. (To bar
        replaced processes could bar the living one: we cannot tell which of two strangers came last.)
        """
        introduces = isinstance(message.body, Hello | Refuse | Introduce)
        meant_for_us = message.receiver == self.incarnation or (
            isinstance(message.body, Hello) and message.receiver == 0
        )
        if not meant_for_us:
            return Refused.FOREIGN_RECEIVER
        if message.sender != self.peer and not introduces:
            return Refused.STRANGER
        if message.sender == self.peer and message.seq <= self._seen:
            return Refused.OVERTAKEN
        self.peer = message.sender
        self._seen = message.seq
        self.last_heard, self.broken_since = now, None
        return None

    def silent_for(self, now: float) -> float:
        return now - self.last_heard

    def broken_for(self, now: float) -> float:
        """Seconds since the connection broke; 0 if the peer has been heard again."""
        return 0.0 if self.broken_since is None else now - self.broken_since
