"""All processes and the writes between them: what each may do next, without the network."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from tests.explorer.both_ways import BothWays
from tests.explorer.decode import DecodeSide
from tests.explorer.local import Bodies, Local
from tests.explorer.node import Node
from tests.explorer.prefill import PrefillSide
from tests.explorer.rank import Facts
from tests.explorer.scene import FIRST, Event, Label, Machines, Scene, label, place_of
from tests.explorer.writes import Stage, Write, Writes, destroy, orphan, read

DEAD = -1  # state of a dead P; a dead D is this or less, see `die`
P, D = "P", "D"  # the first rank of either node
Known: TypeAlias = Mapping[str, Facts | None]  # of each place; `None`: dead


class WriteStep(NamedTuple):
    """Something that may happen to a write: the writes then, and what one side sees of it, if any."""

    label: Label
    writes: int
    side: str
    event: Event


class Sides:
    """The states of all ranks and of the writes that have been reached."""

    def __init__(self, scene: Scene, machines: Machines = Machines()) -> None:  # noqa: B008  # it does not change
        self.scene = scene
        self.places = scene.places
        self.bodies = Bodies()
        self.p, self.d = Local(self.bodies), Local(self.bodies)
        self.writes = Writes()
        self._machines = machines
        self._locals = {place: self.p if place in scene.prefill else self.d for place in scene.places}
        self._done: list[tuple[str, ...]] = [()]  # what a dead D had asked for; D is -1, -2, … accordingly

    def fresh(self, place: str, incarnation: int = 0, dead: int = DEAD) -> int:
        """Return the state of a process that has just started, perhaps where another one has died."""
        incarnation = incarnation or FIRST[place]
        done = self._done[-1 - dead]
        if isinstance(self.scene, BothWays):
            return self.local(place).number(Node(self.scene, self._machines, incarnation, done))
        if place in self.scene.prefill:
            return self.p.number(PrefillSide(self.scene, self._machines, incarnation))
        return self.d.number(DecodeSide(self.scene, self._machines, incarnation, done))

    def die(self, place: str, number: int) -> int:
        """Return the state of a process that has died. A D's successor asks for what D had not asked for, or for all."""
        done = () if self.scene.asks_again else self.local(place).facts[number].asked
        if done not in self._done:
            self._done.append(done)
        return -1 - self._done.index(done)

    def local(self, place: str) -> Local:
        """Return the states of the ranks of one node."""
        return self._locals[place]

    def facts(self, place: str, number: int) -> Facts | None:
        """What is known of a process; `None` if it is dead."""
        return None if number <= DEAD else self._locals[place].facts[number]

    def known(self, numbers: Sequence[int]) -> dict[str, Facts | None]:
        return {place: self.facts(place, number) for place, number in zip(self.places, numbers, strict=False)}

    def problem(self, numbers: Sequence[int]) -> str:
        """What is wrong in a state, or ""."""
        return next((facts.problem for facts in self.known(numbers).values() if facts and facts.problem), "")

    def is_sending(self, writes: int, place: str) -> bool:
        """Whether a rank's sender, of which there is one, is between the machine's word and its call."""
        known = self.writes.known[writes]
        return any(write.stage is Stage.CHECKED and place_of(write.writer) == place for write in known)

    def talks(self, silence: Label, known: Known) -> bool:
        """Whether the peer that a silence takes for dead is alive and talks to us: it is only slow, or cut off."""
        (peer,) = silence.arguments
        if isinstance(peer, str):
            return known[peer] is not None
        there = known[place_of(peer)]
        return there is not None and there.incarnation == peer and silence.where in there.peers

    def may_crash(self, place: str) -> bool:
        """Whether a process may die, once."""
        mates, crashes = (
            (self.scene.prefill, self.scene.crashes_p)
            if place in self.scene.prefill
            else (self.scene.decode, self.scene.crashes_d)
        )
        return crashes > 0 and place == mates[-1]

    def after_crash(self, writes: int, place: str, number: int) -> int:
        """Return the writes after a process has died."""
        facts = self.local(place).facts[number]
        left = orphan(self.writes.known[writes], facts.incarnation, facts.source)
        return self.writes.number(destroy(left, lambda engine: _place_of_engine(engine) != place))

    def write_steps(self, writes: int, known: Known) -> Iterator[WriteStep]:
        """What may happen to the writes under way."""
        under_way = self.writes.known[writes]
        for write in under_way:
            yield from self._of_write(write, [other for other in under_way if other is not write], known)

    def _of_write(self, write: Write, rest: list[Write], known: Known) -> Iterator[WriteStep]:
        source, target = place_of(write.writer), _place_of_engine(write.engine)
        p, d = known[source], known[target]
        is_open = d is not None and write.engine in d.engines
        stage, what = write.stage, (write.writer, write.owner, write.layer, write.engine)
        number = self.writes.number
        if stage is Stage.CHECKED:
            after = number([*rest, write._replace(stage=Stage.FLYING if is_open else Stage.DOOMED)])
            yield WriteStep(label("write", "submit", *what), after, "", ())
        if stage in (Stage.FLYING, Stage.FAILED, Stage.ORPHAN):
            content = write.content or read(p.source if p else (), write.source, write.layer)
            landed = write._replace(stage=Stage.LANDED) if stage is Stage.FLYING else write
            part = self.scene.places.index(source) * self.scene.layers + write.layer
            event = ("land", write.owner, write.target, part, content)
            yield WriteStep(label("write", "land", *what, stage), number([*rest, landed]), target, event)
        if stage is Stage.LANDED:
            yield WriteStep(label("write", "succeed", *what), number(rest), source, ("done", write.handle, True))
        if stage in (Stage.FLYING, Stage.LANDED, Stage.DOOMED):
            left = [*rest, write._replace(stage=Stage.FAILED, handle=None)] if is_open else rest  # it may go on writing
            yield WriteStep(label("write", "fail", *what), number(left), source, ("done", write.handle, False))


def _place_of_engine(engine: str) -> str:
    return place_of(int(engine.partition(":")[0]))
