"""How many may look: a rate of answers per second for all viewers together. No I/O."""

import time
from collections.abc import Callable
from typing import Final

ANSWERS_PER_S: Final = 32.0  # a page asks once a second
BURST: Final = 64.0


class Pace:
    """A bucket that fills evenly."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._left = BURST
        self._at_s = clock()

    def allows(self) -> bool:
        now_s = self._clock()
        self._left = min(BURST, self._left + (now_s - self._at_s) * ANSWERS_PER_S)
        self._at_s = now_s
        if self._left < 1:
            return False
        self._left -= 1
        return True
