"""Which process speaks over which connection.

A decode rank is one process and dials with one connection at a time. So a connection that has spoken for one process
is not believed when it speaks for another: to appear as many, a peer needs as many connections.
"""

from collections import OrderedDict
from collections.abc import Hashable

CAPACITY = 4_096


class ConnectionOwners:
    """The connections heard last, and for whom each of them speaks."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._speakers: OrderedDict[Hashable, int] = OrderedDict()
        self._capacity = capacity

    def may_speak(self, connection: Hashable, sender: int) -> bool:
        """Whether a connection speaks for this process: the first that it spoke for."""
        speaker = self._speakers.setdefault(connection, sender)
        self._speakers.move_to_end(connection)
        if len(self._speakers) > self._capacity:
            self._speakers.popitem(last=False)
        return speaker == sender
