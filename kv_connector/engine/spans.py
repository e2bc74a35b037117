"""Is this run of bytes inside the memory that was registered?"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence

import numpy as np

from baton.kv_connector.errors import EngineError
from baton.kv_connector.layout.copy_plan import CopyPlan
from baton.kv_connector.layout.regions import Span

_FEW = 64  # below so many copies a Python loop is faster than the fixed cost of numpy (about 20 µs)


class Spans:
    """A set of `(address, length)` spans in bytes, which must not overlap."""

    def __init__(self, spans: Iterable[Span]) -> None:
        """Raises `EngineError` for an empty set: an engine without memory is of no use."""
        ordered = sorted(spans)
        if not ordered:
            raise EngineError("no memory was given to the transfer engine")
        self.addresses = [address for address, _ in ordered]
        self.lengths = [length for _, length in ordered]

    def holds(self, address: int, length: int) -> bool:
        """Whether `[address, address + length)` lies inside one span."""
        at = bisect_right(self.addresses, address) - 1
        return at >= 0 and length > 0 and address + length <= self.addresses[at] + self.lengths[at]

    def check_sources(self, plan: CopyPlan) -> None:
        """Raise `EngineError` for a source outside all spans: over TCP Mooncake would send any memory of ours."""
        for part in plan.columns:
            first_outside = self._first_of_few if len(part.src) < _FEW else self._first_of_many
            if (bad := first_outside(part.src, part.length)) is not None:
                raise EngineError(f"{part.length[bad]} B at {part.src[bad]:#x} are not registered and must not be sent")

    def _first_of_few(self, addresses: Sequence[int], lengths: Sequence[int]) -> int | None:
        """Return the index of the first run of bytes that is not inside a span."""
        for i, (address, length) in enumerate(zip(addresses, lengths, strict=True)):
            if not self.holds(address, length):
                return i
        return None

    def _first_of_many(self, addresses: Sequence[int], lengths: Sequence[int]) -> int | None:
        """The same as `_first_of_few`."""
        address, length = np.asarray(addresses, np.int64), np.asarray(lengths, np.int64)
        at = np.searchsorted(self.addresses, address, side="right") - 1
        left = np.take(self.lengths, at) - (address - np.take(self.addresses, at))  # of the span; sums could overflow
        bad = np.flatnonzero((at < 0) | (length <= 0) | (length > left))
        return int(bad[0]) if len(bad) else None
