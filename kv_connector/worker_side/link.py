"""What the sender knows of the link to one peer, and when it next looks after its pushes. Pure."""

from typing import Final

FIRST_GUESS_BYTES_PER_S: Final = 1e9
WEIGHT: Final = 0.3  # of the newest push in the moving average
SHORTEST_S: Final = 1e-4  # a push seen as shorter says nothing of the rate
NEARER: Final = 0.9  # of the time left is slept before a look: so an early end is seen, and the estimate mended
PATIENCE: Final = 0.02  # of the time that a push has taken so far is slept between looks once it is due
MIN_SLEEP_S: Final = 0.0003
MAX_SLEEP_S: Final = 0.05


class Link:
    """Estimates when pushes end. They travel one behind the other, so each begins when the one before it has ended."""

    __slots__ = ("_last_end", "bytes_per_s")

    def __init__(self) -> None:
        self.bytes_per_s = FIRST_GUESS_BYTES_PER_S  # moving average
        self._last_end = 0.0  # s

    def sleep_s(self, size_bytes: int, submitted: float, now: float) -> float:
        """Return how long to sleep before looking after the oldest push: nearer to its expected end with each look."""
        took = now - max(submitted, self._last_end)
        left = size_bytes / self.bytes_per_s - took
        return min(max(NEARER * left, PATIENCE * took, MIN_SLEEP_S), MAX_SLEEP_S)

    def end(self, size_bytes: int, submitted: float, now: float) -> None:
        """A push has ended well: learn from it."""
        took = now - max(submitted, self._last_end)
        self._last_end = now
        if took > SHORTEST_S:
            self.bytes_per_s += WEIGHT * (size_bytes / took - self.bytes_per_s)
