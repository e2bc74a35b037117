"""What local.py asks of a rank: its machine, and what the world needs to know of its state."""

from collections.abc import Iterable
from typing import Any, NamedTuple, TypeAlias

from baton.kv_connector.handoff.session import Session
from baton.kv_connector.protocol.messages import Message
from tests.explorer.scene import Event

Contents: TypeAlias = tuple[tuple[int, tuple[str, ...]], ...]  # block, content per layer


class Facts(NamedTuple):
    incarnation: int
    events: tuple[Event, ...]
    problem: str
    at_rest: bool
    flows: frozenset[str]  # those that are open; of a node: for its side that receives
    peers: frozenset[int | str]  # with which there is a session. P: incarnations, D: places
    source: Contents = ()  # P: content of the source blocks
    lacks: frozenset[str] = frozenset()  # P: flows whose prompt it has not been given
    engines: tuple[str, ...] = ()  # D: receiving engines that are alive
    asked: tuple[str, ...] = ()  # D: transfers that have been asked for, by its predecessor as well
    asks: frozenset[str] = frozenset()  # D: flows that this process has asked for
    started: frozenset[str] = (
        frozenset()
    )  # D: transfers whose prompts P computes, as far as the scheduler has been told


class Rank:
    """One process with one machine."""

    machine: Any

    @property
    def incarnation(self) -> int:
        return int(self.machine.incarnation)

    def outboxes(self) -> Iterable[tuple[int, list[tuple[Any, Message]]]]:
        """What is sent; 1, or -1 where a node's side that receives sends to one that sends."""
        return ((1, self.machine.outbox),)

    def sessions(self) -> Iterable[Session]:
        sessions: Iterable[Session] = self.machine.sessions.values()
        return sessions
