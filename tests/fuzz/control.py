"""Hostile frames behind the authentication, as many as wanted, while honest transfers go on.

    python -m tests.fuzz.control --frames 1000000 --seed 4

Real workers, real state machines, real encrypted sockets; the transfer engine is in memory. The number is that of
frames that have arrived and were changed, repeated, late or old; valid ones among them keep the conversation going. The
run fails if anything crashes, if a frame is lost, if an honest transfer is harmed, if a byte lands where no rank may
write, if a table grows beyond its bound, or if memory grows to the end.
"""

import argparse
import logging
import re
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from tests.fuzz.channel import resident_bytes
from tests.fuzz.healthy import HONEST
from tests.fuzz.tables import tables
from tests.fuzz.world import MAX_REQUESTS, World

FRAMES_PER_STEP = 25
LOOKS = 200  # at tables and memory, over the run
REQUESTS = 3 * MAX_REQUESTS  # under way on one side, of all ranks
_COMPLAINT = re.compile("did not arrive at|the KV that arrived is not the KV that was sent")
GROWTH_BYTES = 8 * 1024 * 1024  # of the second half over the first


@dataclass
class Outcome:
    mutated: int = 0
    frames: int = 0  # with valid ones
    seconds: float = 0.0
    problems: list[str] = field(default_factory=list)
    memory: list[int] = field(default_factory=list)  # bytes, at each look
    most: Counter[str] = field(default_factory=Counter)  # the most that each table had
    complaints: int = 0  # errors in the log, of KV that is not what it should be
    bounds: dict[str, int] = field(default_factory=dict)

    @property
    def growth_bytes(self) -> int:
        """How much more memory the second half of the run took than the first."""
        half = len(self.memory) // 2
        return max(self.memory[half:]) - max(self.memory[:half])


class Errors(logging.Handler):
    """Keeps what the code under test logs as an error: it has caught something that it did not foresee.

    But where a hostile rank sent other KV than it committed, or says that it got other, an error is what it should be.
    """

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.messages: list[str] = []
        self.complaints = 0

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        if record.levelno == logging.ERROR and _COMPLAINT.search(message) and HONEST not in message:
            self.complaints += 1
        else:
            self.messages.append(f"{message} {record.exc_info[1] if record.exc_info else ''}")


def run(world: World, frames: int) -> Outcome:
    """Let the hostile ranks say so many frames."""
    outcome, errors = Outcome(), Errors()
    logging.getLogger().addHandler(errors)
    world.start()
    began, next_look = time.monotonic(), 0
    try:
        while world.mutated < frames and not outcome.problems:
            for _ in range(FRAMES_PER_STEP):
                world.say()
            world.schedule()
            if world.mutated >= next_look:
                next_look += frames // LOOKS
                look(world, outcome)
                outcome.problems += errors.messages
        settle(world, outcome)
        outcome.problems += errors.messages
    except TimeoutError as exc:
        outcome.problems.append(str(exc))
    finally:
        outcome.complaints = errors.complaints
        outcome.frames, outcome.mutated = world.lines.arrived, world.mutated
        outcome.seconds = time.monotonic() - began
        logging.getLogger().removeHandler(errors)
    return outcome


def look(world: World, outcome: Outcome) -> None:
    """Check what must hold at any time."""
    outcome.memory.append(resident_bytes())
    for table in tables(world.ranks, REQUESTS):
        outcome.most[table.name] = max(outcome.most[table.name], table.size)
        outcome.bounds[table.name] = table.bound
        if table.size > table.bound:
            outcome.problems.append(f"{table.name}: {table.size}, at most {table.bound} may be")
    outcome.problems += world.healthy.problems
    if world.healthy.is_overdue():
        outcome.problems.append("an honest transfer does not end")
    if not world.untouched():
        outcome.problems.append("a byte landed in a block that no rank may write to")


def settle(world: World, outcome: Outcome) -> None:
    """After the storm: every frame has arrived, and honest transfers still do."""
    before, give_up = world.healthy.arrived, time.monotonic() + 60.0
    while not outcome.problems and (world.healthy.arrived < before + 5 or world.lines.under_way):
        world.schedule()
        time.sleep(0.001)
        if time.monotonic() > give_up:
            outcome.problems.append(f"no honest transfer arrives any more, or {world.lines.under_way} frames were lost")
    look(world, outcome)


def report(world: World, outcome: Outcome) -> None:
    print(f"{outcome.mutated} mutated frames among {outcome.frames}, ", end="")
    print(f"{world.lines.at_prefill.frames} to P and {world.lines.at_decode.frames} to D, ", end="")
    print(f"in {outcome.seconds:.1f} s: {outcome.frames / outcome.seconds:.0f} frames/s")
    print(f"D hung up {world.lines.hung_up} times, {world.lines.lost} frames were on their way")
    print("mutations:", dict(sorted(world.mutator.counts.items())))
    for name, rank in (("P", world.ranks.prefill), ("D", world.ranks.decode)):
        snapshot = rank.snapshot()
        print(f"{name} refused:", snapshot["refused"])
        print(f"{name} totals:", snapshot["totals"])
    print(f"crashes and other problems: {len(outcome.problems)}; complaints about hostile KV: {outcome.complaints}")
    print(f"hostile requests: {world.hostile_prompts} prompts on P, {world.hostile_reservations} reservations on D")
    print(f"honest transfers: {world.healthy.arrived} arrived with the right bytes, ", end="")
    print(f"{world.healthy.cancelled} cancelled, slowest {world.healthy.slowest_s:.2f} s")
    quarters = [outcome.memory[(len(outcome.memory) - 1) * i // 4] / 1e6 for i in range(5)]
    print("memory, MB, at the quarters:", " ".join(f"{quarter:.1f}" for quarter in quarters), end="; ")
    print(f"second half over first {outcome.growth_bytes / 1e6:.1f}, at most {GROWTH_BYTES / 1e6:.1f} may be")
    print("the most in each table, and the bound:")
    for name, most in outcome.most.items():
        print(f"  {name:34} {most:8} {outcome.bounds[name]:10}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--frames", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=4)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder), arguments.seed)
        try:
            outcome = run(world, arguments.frames)
            report(world, outcome)
        finally:
            world.stop()
    if outcome.growth_bytes > GROWTH_BYTES:
        outcome.problems.append(f"memory grew by {outcome.growth_bytes / 1e6:.1f} MB in the second half")
    for problem in outcome.problems:
        print("PROBLEM:", problem)
    return 1 if outcome.problems else 0


if __name__ == "__main__":
    sys.exit(main())
