"""Is this run of bytes inside the memory that was registered?"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence

from kv_connector.errors import EngineError
from kv_connector.layout import Span
from kv_connector.plan import Copy


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

    def check_sources(self, copies: Sequence[Copy]) -> None:
        """Refuse to send what was not registered: over TCP, Mooncake would send any memory of this process.

        Raises:
            EngineError: a copy's source is not inside a span.
        """
        for copy in copies:
            if not self.holds(copy.src, copy.length):
                raise EngineError(f"{copy.length} B at {copy.src:#x} are not registered and must not be sent")
