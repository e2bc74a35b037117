"""Connections to nodes that requests claim, of as many as the limit of open files leaves.

    two until an answer streams and its prefill leg has ended     one from then on

So as many streams may be open as there are connections, and half as many requests that have not got that far.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from baton.proxy.errors import NoDescriptorsError

_BOTH_LEGS: Final = 2
_DECODE_LEG: Final = 1


class ConnectionBudget:
    """What all requests claim together."""

    def __init__(self, most: Callable[[], int], refused: Callable[[], None]) -> None:
        """`most` says how many connections there may be, `refused` is called where a request would claim more."""
        self._most = most
        self._refused = refused
        self._again: deque[asyncio.Future[None]] = deque()  # streams that broke
        self.connections = 0
        self.requests = 0  # whose head has come and whose answer has not ended

    def claim(self) -> "ConnectionClaim":
        return ConnectionClaim(self)

    def enter(self) -> None:
        """Take both legs of a new request."""
        if self.connections + _BOTH_LEGS > self._most():
            self._refused()
            raise NoDescriptorsError
        self.connections += _BOTH_LEGS
        self.requests += 1

    def leave(self, connections: int) -> None:
        self.requests -= 1
        self.give_back(connections)

    def give_back(self, connections: int) -> None:
        """Some are not needed any more: streams that broke come first."""
        self.connections -= connections
        while self._again and self.connections < self._most():
            turn = self._again.popleft()
            if not turn.done():
                self.connections += 1
                turn.set_result(None)

    async def one_more(self) -> None:
        """Wait for a connection. Without a bound of its own: the caller has a deadline."""
        if self.connections < self._most() and not self._again:
            self.connections += 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._again.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.give_back(1)
            raise


class ConnectionClaim:
    """Context manager that reserves one request's upstream connections."""

    __slots__ = ("_claims", "_connections")

    def __init__(self, claims: ConnectionBudget) -> None:
        self._claims = claims
        self._connections = 0

    def __enter__(self) -> None:
        self._claims.enter()
        self._connections = _BOTH_LEGS

    def __exit__(self, *_: object) -> None:
        connections, self._connections = self._connections, 0  # nothing is given back twice
        self._claims.leave(connections)

    def streams(self) -> None:
        """The answer streams, and the prefill leg is over."""
        if self._connections == _BOTH_LEGS:
            self._connections = _DECODE_LEG
            self._claims.give_back(1)

    async def both_again(self) -> None:
        """The stream broke, and both legs are asked once more: wait until there may be so many."""
        if self._connections == _DECODE_LEG:
            await self._claims.one_more()
            self._connections = _BOTH_LEGS
