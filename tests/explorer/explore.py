"""Breadth first over every state, then whether each of them comes to rest.

The frontier is exhausted, never cut off: the bounds are those of the scope. The first violation is reported with the
shortest way to it.
"""

import time
from dataclasses import dataclass, field

from tests.explorer.rest import Rest
from tests.explorer.scope import Label, label
from tests.explorer.world import World


@dataclass
class Result:
    states: int = 0
    transitions: int = 0
    depth: int = 0
    frontier: int = 0  # states that were not looked at: 0 unless a violation ended it
    seconds: float = 0.0  # of processor time
    violation: str = ""
    trace: list[Label] = field(default_factory=list)
    local_states: tuple[int, int] = (0, 0)  # of P and of D


def explore(world: World) -> Result:
    """Visit every state that can be reached."""
    begun = time.process_time()
    first = world.initial()
    index = {first: 0}
    states, parents, labels = [first], [-1], [label("", "start")]
    rest = Rest(world)
    result = Result()
    level_ends = 1
    here = 0
    while here < len(states) and not result.violation:
        if here == level_ends:
            result.depth, level_ends = result.depth + 1, len(states)
        state = states[here]
        result.violation = world.problem(state)
        if result.violation:
            break
        for step, after in world.successors(state):
            result.transitions += 1
            number = index.setdefault(after, len(states))
            if number == len(states):
                states.append(after)
                parents.append(here)
                labels.append(step)
            rest.note(here, state, step, number)
        here += 1
    if not result.violation:
        here, result.violation = rest.check(states)
    if result.violation:
        while here > 0:
            result.trace.insert(0, labels[here])
            here = parents[here]
    result.states, result.frontier = len(states), len(states) - here - 1 if result.violation else 0
    result.seconds = time.process_time() - begun
    result.local_states = len(world.p.facts), len(world.d.facts)
    return result
