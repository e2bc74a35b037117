"""The transfers of one HTTP request with several prompts, which the proxy knows by one id.

Needed only where the proxy cancels: then all of them end, those too whose prompts have not started yet.
"""

from collections import OrderedDict

REMEMBERED = 4_096  # cancelled ids, since a prompt may start after its request was cancelled


class PromptBatches:
    """Which transfers belong together. A transfer without a group is none of its concern."""

    def __init__(self) -> None:
        self._members: dict[str, set[str]] = {}  # group → open transfers
        self._group_of: dict[str, str] = {}
        self._cancelled: OrderedDict[str, None] = OrderedDict()

    def start(self, group: str, transfer_id: str) -> bool:
        """A prompt is scheduled for the first time. Returns whether its group has been cancelled."""
        if not group:
            return False
        self._members.setdefault(group, set()).add(transfer_id)
        self._group_of[transfer_id] = group
        return group in self._cancelled

    def cancel(self, named: str) -> list[str]:
        """Return the transfers to end when the proxy cancels this id: its own, and those of the group."""
        self._cancelled[named] = None
        if len(self._cancelled) > REMEMBERED:
            self._cancelled.popitem(last=False)
        return [named, *self._members.get(named, ())]

    def end(self, transfer_id: str) -> None:
        if group := self._group_of.pop(transfer_id, ""):
            members = self._members[group]
            members.discard(transfer_id)
            if not members:
                del self._members[group]
