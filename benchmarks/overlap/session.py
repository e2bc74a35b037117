"""The order in which samples are taken: interleaved, on distinct prompts, and again where others used the CPU."""

import asyncio
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from benchmarks.harness import BenchError
from benchmarks.overlap.figures import Cell, Measured, Sample
from benchmarks.usage import OtherCpu

MIN_TOKEN: Final = 10  # of the embedded tokenizer's 1,024: no special ones
MAX_TOKEN: Final = 1000
GLANCE_S: Final = 0.4  # how long one looks to see whether the machine is quiet


class MeasureError(BenchError):
    """A sample could not be taken, or was not what it claims to be; the message says which."""


class Subject(Protocol):
    """Something whose first token, or whose transfer, is timed."""

    async def measure(self, prompt: Sequence[int]) -> Sample:
        """Take one sample. Raises `MeasureError`: the request failed or took another path."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How long to try."""

    samples: int  # per subject and cell
    extra_rounds: int  # per cell, to replace rounds that failed or in which others used the CPU
    max_other_cores: float  # above it a round is taken again
    patience_s: float = 0.0  # before each round, for the machine to become quiet


def prompts(seed: int | None) -> Callable[[int], list[int]]:
    """Return what draws prompts of a length; no two are alike, so that no stale KV can pass for fresh. None: no two sessions either."""
    rng = random.Random(seed)  # repeatable, not secret
    return lambda tokens: [rng.randint(MIN_TOKEN, MAX_TOKEN) for _ in range(tokens)]


def rotated(names: Sequence[str], turn: int) -> list[str]:
    """Return the names, each turn beginning with another, so that none always follows the same one."""
    start = turn % len(names)
    return [*names[start:], *names[:start]]


@dataclass(slots=True)
class _Rounds:
    """The rounds of one cell: clean ones, and the noisy ones in case there are too few."""

    clean: list[dict[str, Sample]] = field(default_factory=list)
    noisy: list[tuple[float, dict[str, Sample]]] = field(default_factory=list)
    cores: list[float] = field(default_factory=list)  # of the clean ones
    failures: list[str] = field(default_factory=list)  # of rounds that were dropped for them

    def add(self, round_: dict[str, Sample], cores: float, limit: float) -> None:
        if cores > limit:
            self.noisy.append((cores, round_))
        else:
            self.clean.append(round_)
            self.cores.append(cores)

    def chosen(self, wanted: int) -> Iterator[tuple[float, dict[str, Sample]]]:
        """Yield the clean rounds, then the least noisy ones up to the number that was wanted."""
        yield from zip(self.cores, self.clean, strict=True)
        yield from sorted(self.noisy, key=lambda pair: pair[0])[: max(0, wanted - len(self.clean))]


async def measure_cell(
    cell: Cell,
    subjects: Mapping[str, Subject],
    draw: Callable[[int], list[int]],
    meter: OtherCpu,
    effort: Effort,
    *,
    layers: int,
    expected_bytes: int,
) -> Measured:
    """Take all samples of a cell; the first round only warms up. Raises `MeasureError`: every round had a failure."""
    names = list(subjects)
    rounds = _Rounds()
    warm = False
    for turn in range(1 + effort.samples + effort.extra_rounds):
        if len(rounds.clean) == effort.samples:
            break
        await wait_until_quiet(meter, effort.max_other_cores, effort.patience_s)
        meter.restart()
        try:
            taken = await _round(cell, rotated(names, turn), subjects, draw)
        except MeasureError as exc:
            rounds.failures.append(str(exc))
            continue
        if warm:
            rounds.add(taken, meter.other_cores(), effort.max_other_cores)
        warm = True
    if not (rounds.clean or rounds.noisy):
        raise MeasureError("; ".join(sorted(set(rounds.failures))) or "there was no round")
    chosen = list(rounds.chosen(effort.samples))
    return Measured(
        cell=cell,
        layers=layers,
        expected_bytes=expected_bytes,
        samples={name: [taken[name] for _, taken in chosen] for name in names},
        other_cores=sum(cores for cores, _ in chosen) / len(chosen),
        noisy_rounds=len(chosen) - len(rounds.clean),
        failures=tuple(rounds.failures),
    )


async def wait_until_quiet(meter: OtherCpu, max_other_cores: float, patience_s: float) -> None:
    """Give others time to finish what they are doing on this machine."""
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline:
        meter.restart()
        await asyncio.sleep(GLANCE_S)
        if meter.other_cores() <= max_other_cores:
            return


async def _round(
    cell: Cell, names: Sequence[str], subjects: Mapping[str, Subject], draw: Callable[[int], list[int]]
) -> dict[str, Sample]:
    taken = {}
    for name in names:
        try:
            taken[name] = await subjects[name].measure(draw(cell.tokens))
        except MeasureError as exc:
            raise MeasureError(f"{name}, {cell}: {exc}") from exc
    return taken
