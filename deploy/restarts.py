"""How often a node of `baton serve` may be started again. Pure: the clock is the caller's."""

from collections import deque
from dataclasses import dataclass, field
from typing import Final

MAX_RESTARTS: Final = 5  # of one node within the window; one more exit ends the stack
WINDOW_S: Final = 300.0
FIRST_DELAY_S: Final = 0.5  # doubled with each restart within the window


@dataclass(slots=True)
class RestartBudget:
    """The restarts of one node."""

    _times_s: deque[float] = field(default_factory=deque)  # of the restarts within the window

    @property
    def used(self) -> int:
        """Number of restarts within the window, as of the last call of `next_delay_s`."""
        return len(self._times_s)

    def next_delay_s(self, now_s: float) -> float | None:
        """Count one more exit; return the seconds to wait before the restart, None if the budget is spent."""
        while self._times_s and now_s - self._times_s[0] > WINDOW_S:
            self._times_s.popleft()
        if len(self._times_s) >= MAX_RESTARTS:
            return None
        delay_s: float = FIRST_DELAY_S * 2 ** len(self._times_s)
        self._times_s.append(now_s)
        return delay_s
