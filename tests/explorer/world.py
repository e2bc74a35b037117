"""Both sides, the network and the writes under way: every event that can happen next, and what it leads to."""

from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

from kv_connector.handoff.consumer import Consumer
from kv_connector.handoff.producer import Producer
from tests.explorer.budget import SPENT, Budget
from tests.explorer.decode import DecodeSide
from tests.explorer.local import Bodies, Facts, Local, Outcome
from tests.explorer.network import ONCE, Network
from tests.explorer.prefill import PrefillSide
from tests.explorer.scope import FIRST_DECODE, FIRST_PREFILL, OWNERS, Event, Label, Scope, label
from tests.explorer.writes import Stage, Write, Writes, destroy, orphan, read

DEAD = -1
P, D = "P", "D"
FIRST = {P: FIRST_PREFILL, D: FIRST_DECODE}

# Numbers of: P's state, D's state, network, writes, budget.
State: TypeAlias = tuple[int, int, int, int, int]


class Step(NamedTuple):
    """Something that a side may do of itself in one of its states."""

    label: Label
    event: Event
    outcome: Outcome


class WriteStep(NamedTuple):
    """Something that may happen to a write, and the side that it changes, if any."""

    label: Label
    writes: int
    side: str
    outcome: Outcome | None


class World:
    """All that can happen."""

    def __init__(self, scope: Scope, producer: type[Producer] = Producer, consumer: type[Consumer] = Consumer) -> None:
        self.scope = scope
        self.bodies = Bodies()
        self.p, self.d = Local(self.bodies), Local(self.bodies)
        self._producer, self._consumer = producer, consumer
        self.network, self.writes, self.budget = Network(self.bodies), Writes(), Budget(scope)
        self._steps: dict[tuple[str, int], list[Step]] = {}
        self._write_steps: dict[tuple[int, int, int], list[WriteStep]] = {}

    def _fresh_p(self, incarnation: int) -> int:
        return self.p.number(PrefillSide(self.scope, self._producer, incarnation))

    def _fresh_d(self, incarnation: int) -> int:
        skip = () if self.scope.asks_again or incarnation == FIRST_DECODE else self.scope.names
        return self.d.number(DecodeSide(self.scope, self._consumer, incarnation, skip))

    def initial(self) -> State:
        """Both processes have just started."""
        return self._fresh_p(FIRST[P]), self._fresh_d(FIRST[D]), 0, 0, 0

    def facts(self, state: State, side: str) -> Facts | None:
        """What is known of a side; `None` if it is dead."""
        number = state[0] if side == P else state[1]
        return None if number == DEAD else (self.p if side == P else self.d).facts[number]

    def problem(self, state: State) -> str:
        """What is wrong in `state`, or ""."""
        p, d = self.facts(state, P), self.facts(state, D)
        return (p.problem if p else "") or (d.problem if d else "")

    def successors(self, state: State) -> Iterator[tuple[Label, State]]:
        """Every event that can happen in `state`, with the state after it."""
        yield from self._by_itself(state, P)
        yield from self._by_itself(state, D)
        yield from self._messages(state)
        for step in self._writes(state):
            before = (*state[:3], step.writes, state[4])
            yield step.label, before if step.outcome is None else self._apply(before, step.side, step.outcome)
        yield from self._crashes(state)

    def talks(self, state: State, side: str, event: Event) -> bool:
        """Whether the peer that a silence takes for dead is alive and talks to us: it is only slow, or cut off."""
        peer = self.facts(state, P if side == D else D)
        return peer is not None and (side == D or (event[1] == peer.incarnation and bool(peer.peers)))

    def _decode(self, d: int) -> int:
        return 0 if d == DEAD else self.d.facts[d].incarnation

    def _apply(self, state: State, side: str, outcome: Outcome) -> State:
        p, d, net, writes, budget = state
        net = self.network.after(net, side, outcome, self._decode(d))
        if outcome.submitted or outcome.fenced:
            writes = self.writes.after(writes, outcome)
        return (outcome.state, d, net, writes, budget) if side == P else (p, outcome.state, net, writes, budget)

    def _by_itself(self, state: State, side: str) -> Iterator[tuple[Label, State]]:
        number = state[0] if side == P else state[1]
        if number == DEAD:
            return
        for step in self._steps_of(side, number):
            before = state
            name = step.event[0]
            if name == "beat" and self.network.options(state[2]).busy > self.scope.beat_among:
                continue  # beats are slow
            if name == "push" and any(write.stage is Stage.CHECKED for write in self.writes.known[state[3]]):
                continue  # there is one sender thread
            if name == "silence" and self.talks(state, side, step.event):
                budget = self.budget.spend(state[4], f"silence_{side.lower()}")
                if budget == SPENT:
                    continue
                before = (*state[:4], budget)
            yield step.label, self._apply(before, side, step.outcome)

    def _steps_of(self, side: str, number: int) -> list[Step]:
        key = (side, number)
        if key not in self._steps:
            local = self.p if side == P else self.d
            events = local.facts[number].events
            self._steps[key] = [Step(label(side, *event), event, local.run(number, event)) for event in events]
        return self._steps[key]

    def _messages(self, state: State) -> Iterator[tuple[Label, State]]:
        p, d, net, writes, budget = state
        options = self.network.options(net)
        for delivery in options.deliveries:
            number = p if delivery.to == P else d
            left = budget
            for _ in range(delivery.overtaken):
                left = SPENT if left == SPENT else self.budget.spend(left, "loss")
            if number != DEAD and left != SPENT:
                outcome = (self.p if delivery.to == P else self.d).run(number, delivery.event)
                yield delivery.label, self._apply((p, d, delivery.net, writes, left), delivery.to, outcome)
        lost = self.budget.spend(budget, "loss")
        for what, after, message in options.losses:
            if message.to == D and message.receiver != self._decode(d):
                yield what, (p, d, after, writes, budget)  # what nobody will read may vanish
            elif lost != SPENT and message.copies == ONCE:
                yield what, (p, d, after, writes, lost)
        twice = self.budget.spend(budget, "duplicate")
        if twice != SPENT:
            for what, after in options.duplicates:
                yield what, (p, d, after, writes, twice)

    def _writes(self, state: State) -> list[WriteStep]:
        p, d, _, writes, _ = state
        key = (writes, p, d)
        if key not in self._write_steps:
            known = self.writes.known[writes]
            steps = [
                step for write in known for step in self._of_write(state, write, [w for w in known if w is not write])
            ]
            self._write_steps[key] = steps
        return self._write_steps[key]

    def _of_write(self, state: State, write: Write, rest: list[Write]) -> Iterator[WriteStep]:
        p, d = self.facts(state, P), self.facts(state, D)
        is_open = d is not None and write.engine in d.engines
        stage, what = write.stage, (write.writer, OWNERS[write.target], write.layer, write.engine)
        number = self.writes.number
        if stage is Stage.CHECKED:
            after = number([*rest, write._replace(stage=Stage.FLYING if is_open else Stage.DOOMED)])
            yield WriteStep(label("write", "submit", *what), after, "", None)
        if stage in (Stage.FLYING, Stage.FAILED, Stage.ORPHAN):
            content = write.content or read(p.source if p else (), write.source, write.layer)
            landed = write._replace(stage=Stage.LANDED) if stage is Stage.FLYING else write
            outcome = self.d.run(state[1], ("land", write.target, write.layer, content))
            yield WriteStep(label("write", "land", *what, stage), number([*rest, landed]), D, outcome)
        if stage is Stage.LANDED:
            outcome = self.p.run(state[0], ("done", write.handle, True))
            yield WriteStep(label("write", "succeed", *what), number(rest), P, outcome)
        if stage in (Stage.FLYING, Stage.LANDED, Stage.DOOMED):
            outcome = self.p.run(state[0], ("done", write.handle, False))
            left = [*rest, write._replace(stage=Stage.FAILED, handle=None)] if is_open else rest  # it may go on writing
            yield WriteStep(label("write", "fail", *what), number(left), P, outcome)

    def _crashes(self, state: State) -> Iterator[tuple[Label, State]]:
        p, d, net, writes, budget = state
        left = self.budget.known[budget]
        known = self.writes.known[writes]
        if p == DEAD:
            incarnation = FIRST[P] + self.budget.first.crash_p - left.crash_p
            yield label(P, "restart"), (self._fresh_p(incarnation), d, self.network.restarted(net, P), writes, budget)
        elif (after := self.budget.spend(budget, "crash_p")) != SPENT:
            orphans = self.writes.number(orphan(known, self.p.facts[p].source))
            yield label(P, "crash"), (DEAD, d, net, orphans, after)
        if d == DEAD:
            incarnation = FIRST[D] + self.budget.first.crash_d - left.crash_d
            yield label(D, "restart"), (p, self._fresh_d(incarnation), self.network.restarted(net, D), writes, budget)
        elif (after := self.budget.spend(budget, "crash_d")) != SPENT:
            doomed = self.writes.number(destroy(known, lambda _: False))
            for queued in self.network.crashed(net):
                yield label(D, "crash"), (p, DEAD, queued, doomed, after)
