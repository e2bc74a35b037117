"""What became of transfers that have ended on P.

A decode rank may ask late (its `Reserve` was overtaken, our `Commit` was lost) and a prompt may start late (its leg sat
in a queue while D gave up). Both are answered from here. The memory is bounded: the oldest ids go first, those of the
rank that has the most, so that one that ends transfers without end pushes out no other rank's.
"""

from collections import OrderedDict
from itertools import islice
from typing import Final

from msgspec.structs import replace

from baton.kv_connector.layout.tp_mapping import transfer_id_of_flow
from baton.kv_connector.protocol.messages import Commit, Fail

CAPACITY = 65_536
NO_TIMINGS: Final[dict[str, float]] = {}  # one for all
_COMPARED = 1_024  # ranks among which the one with the most is sought


class Tombstones:
    """The last outcome of each ended transfer id, and the decode rank that it was meant for."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._outcomes: dict[str, tuple[int, Commit | Fail]] = {}
        self._by_owner: dict[int, OrderedDict[str, None]] = {}  # oldest first
        self._capacity = capacity

    def __contains__(self, transfer_id: str) -> bool:
        return self._known(transfer_id) is not None

    def bury(self, decode: int, outcome: Commit | Fail) -> None:
        """Remember how a transfer ended; `decode` is the incarnation of its decode rank.

        A commit that is said again is without its timings, which take most of the room and go into D's metrics alone.
        """
        self._forget(outcome.transfer_id)
        if isinstance(outcome, Commit):
            outcome = replace(outcome, timings_s=NO_TIMINGS, pushing_s=0.0)
        self._outcomes[outcome.transfer_id] = decode, outcome
        self._by_owner.setdefault(decode, OrderedDict())[outcome.transfer_id] = None
        while len(self._outcomes) > self._capacity:
            richest = max(islice(self._by_owner.values(), _COMPARED), key=len)
            self._forget(next(iter(richest)))

    def answer(self, decode: int, transfer_id: str, epoch: int) -> Commit | Fail | None:
        """Return what to tell a decode rank that asks for an epoch of `transfer_id`; `None` if the id is not known.

        Only the epoch that was committed is answered with its commit, and only to the process that drew it: a
        restarted one counts its epochs from the beginning. Any other epoch was never written to, so it failed cleanly.
        """
        known = self._known(transfer_id)
        if known is None:
            return None
        owner, outcome = known
        if (owner, outcome.epoch) == (decode, epoch):
            return outcome
        reason = outcome.reason if isinstance(outcome, Fail) else "the transfer has ended"
        return Fail(transfer_id=transfer_id, epoch=epoch, dirty=False, reason=reason)

    def _known(self, transfer_id: str) -> tuple[int, Commit | Fail] | None:
        """A flow has ended with its transfer, too: that was cancelled before its flows had names here."""
        return self._outcomes.get(transfer_id) or self._outcomes.get(transfer_id_of_flow(transfer_id))

    def _forget(self, transfer_id: str) -> None:
        known = self._outcomes.pop(transfer_id, None)
        if known is not None:
            owned = self._by_owner[known[0]]
            del owned[transfer_id]
            if not owned:
                del self._by_owner[known[0]]
