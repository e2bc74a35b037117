"""How many more bad things may happen, as numbers."""

from typing import NamedTuple

from tests.explorer.scope import Scope

SPENT = -1


class Left(NamedTuple):
    """What is left, by kind; `faults` counts all kinds together."""

    faults: int
    loss: int
    duplicate: int
    silence_p: int
    silence_d: int
    crash_p: int
    crash_d: int


class Budget:
    """Numbers for every amount that can be left."""

    def __init__(self, scope: Scope) -> None:
        silences, crashes = scope.silences, (scope.crashes_p, scope.crashes_d)
        self.first = Left(scope.faults, scope.losses, scope.duplicates, silences, silences, *crashes)
        self.known = [self.first]
        self._numbers = {self.first: 0}
        self._spent: dict[tuple[int, str], int] = {}

    def spend(self, budget: int, kind: str) -> int:
        """Return the budget after one more fault of `kind`, or `SPENT` if it allows none."""
        key = (budget, kind)
        if key not in self._spent:
            self._spent[key] = self._after(self.known[budget], kind)
        return self._spent[key]

    def _after(self, left: Left, kind: str) -> int:
        if not left.faults or not getattr(left, kind):
            return SPENT
        after = left._replace(faults=left.faults - 1, **{kind: getattr(left, kind) - 1})
        if after not in self._numbers:
            self._numbers[after] = len(self.known)
            self.known.append(after)
        return self._numbers[after]
