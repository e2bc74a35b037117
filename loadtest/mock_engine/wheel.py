"""One timer for everything that is due later. The wheel itself is pure; `Ticker` turns it by the event loop's clock."""

import asyncio
import math
from collections.abc import Generator

Due = Generator[float, None, None]  # does its work; yields in how many seconds it is due again


class Wheel:
    """What is due at which tick."""

    def __init__(self, tick_s: float) -> None:
        self.tick_s = tick_s
        self._slots: dict[int, list[Due]] = {}

    @property
    def next_tick(self) -> int | None:
        return min(self._slots, default=None)

    def add(self, due: Due, at_s: float) -> None:
        """Have something done at the first tick that is not before a time."""
        self._put(due, math.ceil(at_s / self.tick_s - 1e-6))

    def turn(self, tick: int) -> None:
        """Do what is due up to a tick; what is due again counts from when it was due, so that nothing drifts."""
        for at in sorted(at for at in self._slots if at <= tick):
            for due in self._slots.pop(at):
                again_s = next(due, None)
                if again_s is not None:
                    self._put(due, max(at + round(again_s / self.tick_s), at + 1))

    def _put(self, due: Due, tick: int) -> None:
        self._slots.setdefault(tick, []).append(due)


class Ticker:
    """Turns a wheel by the event loop's clock."""

    def __init__(self, tick_s: float) -> None:
        self._wheel = Wheel(tick_s)
        self._loop = asyncio.get_running_loop()
        self._handle: asyncio.TimerHandle | None = None
        self._armed: int | None = None

    def after(self, delay_s: float, due: Due) -> None:
        """Have something done after a delay, at once if there is none."""
        if delay_s <= 0:
            again_s = next(due, None)
            if again_s is None:
                return
            delay_s = again_s
        self._wheel.add(due, self._loop.time() + delay_s)
        self._arm()

    def _arm(self) -> None:
        tick = self._wheel.next_tick
        if tick is None or (self._armed is not None and self._armed <= tick):
            return
        if self._handle is not None:
            self._handle.cancel()
        self._armed = tick
        self._handle = self._loop.call_at(tick * self._wheel.tick_s, self._fire)

    def _fire(self) -> None:
        assert self._armed is not None
        tick = max(self._armed, int(self._loop.time() / self._wheel.tick_s + 1e-6))
        self._armed = self._handle = None
        self._wheel.turn(tick)
        self._arm()
