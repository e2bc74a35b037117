"""Both processes and the writes between them: what each may do next, without the network."""

from collections.abc import Iterator
from typing import NamedTuple

from kv_connector.handoff.consumer import Consumer
from kv_connector.handoff.producer import Producer
from tests.explorer.decode import DecodeSide
from tests.explorer.local import Bodies, Facts, Local, Outcome
from tests.explorer.prefill import PrefillSide
from tests.explorer.scope import FIRST_DECODE, FIRST_PREFILL, Event, Label, Scene, label
from tests.explorer.writes import Stage, Write, Writes, read

DEAD = -1  # state of a dead P; a dead D is this or less, see `die`
P, D = "P", "D"
FIRST = {P: FIRST_PREFILL, D: FIRST_DECODE}


class Step(NamedTuple):
    """Something that a side may do of itself in one of its states."""

    label: Label
    event: Event
    outcome: Outcome


class WriteStep(NamedTuple):
    """Something that may happen to a write, and what the side that it concerns sees of it, if any."""

    label: Label
    writes: int
    side: str
    event: Event


class Sides:
    """The states of P, of D and of the writes that have been reached."""

    def __init__(self, scene: Scene, producer: type[Producer] = Producer, consumer: type[Consumer] = Consumer) -> None:
        self.scene = scene
        self.bodies = Bodies()
        self.p, self.d = Local(self.bodies), Local(self.bodies)
        self.writes = Writes()
        self._producer, self._consumer = producer, consumer
        self._done: list[tuple[str, ...]] = [()]  # what a dead D had asked for; D is -1, -2, … accordingly
        self._steps: dict[tuple[str, int], list[Step]] = {}

    def fresh_p(self, incarnation: int = FIRST_PREFILL) -> int:
        """Return the state of a process that has just started."""
        return self.p.number(PrefillSide(self.scene, self._producer, incarnation))

    def fresh_d(self, incarnation: int = FIRST_DECODE, dead: int = DEAD) -> int:
        """Return the state of a process that has just started, in place of a dead one."""
        return self.d.number(DecodeSide(self.scene, self._consumer, incarnation, self._done[-1 - dead]))

    def die(self, d: int) -> int:
        """Return the state of D when it has died: its successor asks for what it had not asked for, or for all."""
        done = () if self.scene.asks_again else self.d.facts[d].asked
        if done not in self._done:
            self._done.append(done)
        return -1 - self._done.index(done)

    def local(self, side: str) -> Local:
        """Return the states of one side."""
        return self.p if side == P else self.d

    def facts(self, side: str, number: int) -> Facts | None:
        """What is known of a side; `None` if it is dead."""
        return None if number <= DEAD else self.local(side).facts[number]

    def problem(self, p: int, d: int) -> str:
        """What is wrong in a state, or ""."""
        at_p, at_d = self.facts(P, p), self.facts(D, d)
        return (at_p.problem if at_p else "") or (at_d.problem if at_d else "")

    def steps_of(self, side: str, number: int) -> list[Step]:
        """What a living side may do of itself."""
        key = (side, number)
        if key not in self._steps:
            local = self.local(side)
            events = local.facts[number].events
            self._steps[key] = [Step(label(side, *event), event, local.run(number, event)) for event in events]
        return self._steps[key]

    def is_sending(self, writes: int) -> bool:
        """Whether the sender, of which there is one, is between the machine's word and its call."""
        return any(write.stage is Stage.CHECKED for write in self.writes.known[writes])

    def talks(self, side: str, event: Event, p: int, d: int) -> bool:
        """Whether the peer that a silence takes for dead is alive and talks to us: it is only slow, or cut off."""
        peer = self.facts(P, p) if side == D else self.facts(D, d)
        return peer is not None and (side == D or (event[1] == peer.incarnation and bool(peer.peers)))

    def write_steps(self, writes: int, p: Facts | None, d: Facts | None) -> Iterator[WriteStep]:
        """What may happen to the writes under way."""
        known = self.writes.known[writes]
        for write in known:
            yield from self._of_write(write, [other for other in known if other is not write], p, d)

    def _of_write(self, write: Write, rest: list[Write], p: Facts | None, d: Facts | None) -> Iterator[WriteStep]:
        is_open = d is not None and write.engine in d.engines
        stage, what = write.stage, (write.writer, write.owner, write.layer, write.engine)
        number = self.writes.number
        if stage is Stage.CHECKED:
            after = number([*rest, write._replace(stage=Stage.FLYING if is_open else Stage.DOOMED)])
            yield WriteStep(label("write", "submit", *what), after, "", ())
        if stage in (Stage.FLYING, Stage.FAILED, Stage.ORPHAN):
            content = write.content or read(p.source if p else (), write.source, write.layer)
            landed = write._replace(stage=Stage.LANDED) if stage is Stage.FLYING else write
            event = ("land", write.owner, write.target, write.layer, content)
            yield WriteStep(label("write", "land", *what, stage), number([*rest, landed]), D, event)
        if stage is Stage.LANDED:
            yield WriteStep(label("write", "succeed", *what), number(rest), P, ("done", write.handle, True))
        if stage in (Stage.FLYING, Stage.LANDED, Stage.DOOMED):
            left = [*rest, write._replace(stage=Stage.FAILED, handle=None)] if is_open else rest  # it may go on writing
            yield WriteStep(label("write", "fail", *what), number(left), P, ("done", write.handle, False))
