"""What operators ordered at run time, as data: it outlives the worker that was told. Pure."""

from collections.abc import Mapping

import msgspec

Urls = Mapping[str, tuple[str, ...]]  # by role


class AdminOverrides(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that members owe to the admin API and not to a source."""

    version: int = 0  # grows with every change
    added: Urls = {}
    removed: Urls = {}  # kept out although a source names them
    drained: Urls = {}
    evacuated: Mapping[str, float] = {}  # decode node → when (time.monotonic, the same clock in all workers)
    roles_changed_at: float | None = None  # when a node was last given another role (time.monotonic); None: never

    def without(self, forgotten: "AdminOverrides") -> "AdminOverrides":
        """Return these, less removals and drains that have come to their end; the next version."""
        return msgspec.structs.replace(
            self,
            version=self.version + 1,
            removed=_less(self.removed, forgotten.removed),
            drained=_less(self.drained, forgotten.drained),
        )

    def lost_in(self, later: "AdminOverrides") -> "AdminOverrides":
        """Return the removals and drains that are there no more."""
        return AdminOverrides(removed=_less(self.removed, later.removed), drained=_less(self.drained, later.drained))

    def same_as(self, other: "AdminOverrides") -> bool:
        """Whether both say the same, whatever their versions."""
        return msgspec.structs.replace(self, version=other.version) == other


def _less(urls: Urls, others: Urls) -> Urls:
    return {role: tuple(url for url in found if url not in others.get(role, ())) for role, found in urls.items()}
