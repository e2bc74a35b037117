"""Every state of `anything.py`, with all the mail that can have been sent on any way to it.

A state is looked at again when further mail is found for it, until there is none: the frontier is exhausted, never cut
off. A violation is told with the first way to it that was found.
"""

import time
from array import array
from dataclasses import dataclass, field
from heapq import heappop, heappush

from tests.explorer.anything import ALWAYS, Anything, Key
from tests.explorer.rest import check
from tests.explorer.scene import Label
from tests.explorer.sides import Sides


@dataclass
class Result:
    states: int = 0
    transitions: int = 0
    frontier: int = 0  # states that were not looked at: 0 unless a violation ended it
    seconds: float = 0.0  # of processor time
    violation: str = ""
    trace: list[Label] = field(default_factory=list)
    local_states: tuple[int, int] = (0, 0)  # of the prefill and of the decode ranks


def exhaust(sides: Sides) -> Result:
    """Visit every state that can be reached over a network that may do anything."""
    begun = time.process_time()
    found = Found(Anything(sides))
    result = Result()
    while found.frontier and not result.violation:
        result.transitions += found.expand()
        if found.wrong:
            result.violation, result.trace = found.wrong, found.way_to(len(found.keys) - 1)
    if not result.violation:
        here, result.violation = check(found.all, found.keys, found.mails, found.numbers)
        result.trace = found.way_to(here)
    assert found.all.fits(), "a number has run over into the next field"
    result.states, result.frontier = len(found.keys), len(found.frontier)
    result.local_states = len(sides.p.facts), len(sides.d.facts)
    result.seconds = time.process_time() - begun
    return result


class Found:
    """States, by number in the order in which they were found."""

    def __init__(self, anything: Anything) -> None:
        self.all = anything
        self.keys = array("Q", [anything.initial()])
        self.numbers = {self.keys[0]: 0}
        self.frontier = [0]  # a heap: the oldest first, so that a state has most of its mail when it is looked at
        self.wrong = ""
        self.mails = [ALWAYS]
        self._same = {ALWAYS: ALWAYS}  # mails, each kept once
        self._waits = bytearray([1])  # in the frontier
        self._from = array("L", [0])

    def expand(self) -> int:
        """Look at the next state of the frontier; return how many others can follow."""
        numbers, mails, waits = self.numbers, self.mails, self._waits
        here = heappop(self.frontier)
        waits[here] = 0
        mails[here], successors = self.all.successors(self.keys[here], mails[here])
        for key, mail in successors:
            there = numbers.get(key)
            if there is None:
                self._add(key, mail, here)
                if self.wrong:
                    break
            elif (both := mail | mails[there]) != mails[there]:
                mails[there] = self._same.setdefault(both, both)
                if not waits[there]:
                    waits[there] = 1
                    heappush(self.frontier, there)
        return len(successors)

    def way_to(self, there: int) -> list[Label]:
        """Return the events of the first way to a state."""
        way: list[Label] = []
        while there > 0:
            here = self._from[there]
            way.insert(0, self.all.label(self.keys[here], self.mails[here], self.keys[there]))
            there = here
        return way

    def _add(self, key: Key, mail: int, came_from: int) -> None:
        self.numbers[key] = len(self.keys)
        heappush(self.frontier, len(self.keys))
        self.keys.append(key)
        self.mails.append(self._same.setdefault(mail, mail))
        self._waits.append(1)
        self._from.append(came_from)
        self.wrong = self.all.sides.problem(self.all.unpack(key)[0])
