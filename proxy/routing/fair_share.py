"""Who was given how much lately: what keeps affinity from giving one node everything while the others idle. Pure.

Amounts fade by half every `HALF_LIFE_S`. Instead of making all of them smaller as time goes by, new ones are written
down larger; once in a while everything is brought back to size.
"""

from typing import Final

HALF_LIFE_S: Final = 120.0
_LARGE: Final = 2.0**40


class FairShare:
    """Faded sums of work, one per slot."""

    def __init__(self) -> None:
        self._given: dict[int, float] = {}
        self._total = 0.0
        self._unit_s = 0.0  # the time at which an amount counts as it is

    def add(self, slot: int, amount: float, now_s: float) -> None:
        if self.unit(now_s) > _LARGE or not self._given:
            self._rescale(now_s)
        counts = amount * self.unit(now_s)
        self._given[slot] = self._given.get(slot, 0.0) + counts
        self._total += counts

    def unit(self, now_s: float) -> float:
        """What one byte of work that is given now counts. `given` and `limit` are in the same measure."""
        return float(2 ** (min(now_s - self._unit_s, 1000 * HALF_LIFE_S) / HALF_LIFE_S))

    def given(self, slot: int) -> float:
        return self._given.get(slot, 0.0)

    def limit(self, amount: float, now_s: float, *, times: float, nodes: int, slack: float) -> float:
        """`slack`, and so many times what each of the nodes would have if `amount` more came and all had the same."""
        unit = self.unit(now_s)
        return times * (self._total + amount * unit) / nodes + slack * unit

    def forget(self, slot: int) -> None:
        self._total -= self._given.pop(slot, 0.0)

    def _rescale(self, now_s: float) -> None:
        unit = self.unit(now_s)
        self._given = {slot: amount / unit for slot, amount in self._given.items()}
        self._total = sum(self._given.values())
        self._unit_s = now_s
