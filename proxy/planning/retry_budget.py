"""How much the proxy may repeat, over all requests. Pure: the clock is given.

A cluster in trouble must not be asked several times for every request. Retries are paid from a bucket, which every
request fills by a share of one retry, and time by a little, so that a proxy with few requests can retry too. The bucket
starts full and is deep: the loss of one node breaks all of its requests at once, and those are to be saved; trouble
that lasts empties it, and then the share is what is left.
"""

from collections.abc import Callable
from typing import Final

FLOOR_PER_S: Final = 1.0  # retries that time alone allows


class RetryBudget:
    """A token bucket; one token, one retry."""

    def __init__(self, *, share: float, burst: int, clock: Callable[[], float]) -> None:
        self._share = share
        self._burst = float(burst)
        self._clock = clock
        self._tokens = self._burst
        self._filled_s = clock()

    def earn(self) -> None:
        """Count a request that arrived; `left` bounds what has been earned."""
        self._tokens += self._share

    @property
    def left(self) -> int:
        """How many retries may be made now."""
        now_s = self._clock()
        self._tokens = min(self._burst, self._tokens + (now_s - self._filled_s) * FLOOR_PER_S)
        self._filled_s = now_s
        return int(self._tokens)

    def spend(self) -> None:
        """Pay for one retry; the caller has looked at `left`."""
        assert self._tokens >= 1
        self._tokens -= 1

    def give_back(self) -> None:
        """Take back the payment for one retry."""
        self._tokens += 1
