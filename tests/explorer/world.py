"""Both sides, the network and the writes under way: every event that can happen next, and what it leads to."""

from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

from tests.explorer.budget import SPENT, Budget
from tests.explorer.local import Outcome
from tests.explorer.network import ONCE, Network
from tests.explorer.rank import Facts
from tests.explorer.scope import FIRST, Label, Machines, Scope, label
from tests.explorer.sides import DEAD, D, P, Sides

# Numbers of: P's state, D's state, network, writes, budget.
State: TypeAlias = tuple[int, int, int, int, int]


class WriteMove(NamedTuple):
    """Something that may happen to a write, and what it does to the side that it changes, if any."""

    label: Label
    writes: int
    side: str
    outcome: Outcome | None


class World:
    """All that can happen."""

    def __init__(self, scope: Scope, machines: Machines = Machines()) -> None:  # noqa: B008  # it does not change
        assert len(scope.places) == 2, "faults are counted between one rank and another"
        self.scope = scope
        self.sides = Sides(scope, machines)
        self.p, self.d, self.writes = self.sides.p, self.sides.d, self.sides.writes
        self.network, self.budget = Network(self.sides.bodies), Budget(scope)
        self._write_moves: dict[tuple[int, int, int], list[WriteMove]] = {}

    def initial(self) -> State:
        """Both processes have just started."""
        return self.sides.fresh(P), self.sides.fresh(D), 0, 0, 0

    def known(self, state: State) -> dict[str, Facts | None]:
        return self.sides.known(state[:2])

    def problem(self, state: State) -> str:
        return self.sides.problem(state[:2])

    def successors(self, state: State) -> Iterator[tuple[Label, State]]:
        """Every event that can happen in `state`, with the state after it."""
        yield from self._by_itself(state, P)
        yield from self._by_itself(state, D)
        yield from self._messages(state)
        for move in self._moves_of_writes(state):
            before = (*state[:3], move.writes, state[4])
            yield move.label, before if move.outcome is None else self._apply(before, move.side, move.outcome)
        yield from self._crashes(state)

    def _decode(self, d: int) -> int:
        return 0 if d <= DEAD else self.d.facts[d].incarnation

    def _apply(self, state: State, side: str, outcome: Outcome) -> State:
        p, d, net, writes, budget = state
        net = self.network.after(net, side, outcome, self._decode(d))
        if outcome.submitted or outcome.fenced:
            writes = self.writes.after(writes, outcome)
        return (outcome.state, d, net, writes, budget) if side == P else (p, outcome.state, net, writes, budget)

    def _by_itself(self, state: State, side: str) -> Iterator[tuple[Label, State]]:
        number = state[0] if side == P else state[1]
        if number <= DEAD:
            return
        for step in self.sides.steps_of(side, number):
            before = state
            name = step.event[0]
            if name in self.scope.without:
                continue
            if name == "beat" and self.network.options(state[2]).busy > self.scope.beat_among:
                continue  # beats are slow
            if name == "push" and self.sides.is_sending(state[3], side):
                continue
            if name == "silence" and self.sides.talks(step.label, self.known(state)):
                budget = self.budget.spend(state[4], f"silence_{side.lower()}")
                if budget == SPENT:
                    continue
                before = (*state[:4], budget)
            yield step.label, self._apply(before, side, step.outcome)

    def _messages(self, state: State) -> Iterator[tuple[Label, State]]:
        p, d, net, writes, budget = state
        options = self.network.options(net)
        for delivery in options.deliveries:
            number = p if delivery.to == P else d
            left = budget
            for _ in range(delivery.overtaken):
                left = SPENT if left == SPENT else self.budget.spend(left, "loss")
            if number > DEAD and left != SPENT:
                outcome = (self.p if delivery.to == P else self.d).run(number, delivery.event)
                yield delivery.label, self._apply((p, d, delivery.net, writes, left), delivery.to, outcome)
        lost = self.budget.spend(budget, "loss")
        for what, after, message in options.losses:
            if message.to == D and message.receiver != self._decode(d):
                yield what, (p, d, after, writes, budget)  # what no process will read may vanish
            elif lost != SPENT and message.copies == ONCE:
                yield what, (p, d, after, writes, lost)
        twice = self.budget.spend(budget, "duplicate")
        if twice != SPENT:
            for what, after in options.duplicates:
                yield what, (p, d, after, writes, twice)

    def _moves_of_writes(self, state: State) -> list[WriteMove]:
        p, d, _, writes, _ = state
        key = (writes, p, d)
        if key not in self._write_moves:
            self._write_moves[key] = [
                WriteMove(*step[:3], self.sides.local(step.side).run(p if step.side == P else d, step.event))
                if step.side
                else WriteMove(*step[:3], None)
                for step in self.sides.write_steps(writes, self.known(state))
            ]
        return self._write_moves[key]

    def _crashes(self, state: State) -> Iterator[tuple[Label, State]]:
        p, d, net, writes, budget = state
        first, left = self.budget.first, self.budget.known[budget]
        if p == DEAD:
            fresh = self.sides.fresh(P, FIRST[P] + first.crash_p - left.crash_p)
            yield label(P, "restart"), (fresh, d, self.network.restarted(net, P), writes, budget)
        elif (after := self.budget.spend(budget, "crash_p")) != SPENT:
            yield label(P, "crash"), (DEAD, d, net, self.sides.after_crash(writes, P, p), after)
        if d <= DEAD:
            fresh = self.sides.fresh(D, FIRST[D] + first.crash_d - left.crash_d, d)
            yield label(D, "restart"), (p, fresh, self.network.restarted(net, D), writes, budget)
        elif (after := self.budget.spend(budget, "crash_d")) != SPENT:
            doomed = self.sides.after_crash(writes, D, d)
            for queued in self.network.crashed(net):
                yield label(D, "crash"), (p, self.sides.die(D, d), queued, doomed, after)
