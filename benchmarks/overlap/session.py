"""The order in which samples are taken: interleaved, on distinct prompts, and again where others used the CPU."""

import asyncio
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from benchmarks.harness import BenchError
from benchmarks.overlap.figures import Cell, Kv, Measured, Sample
from benchmarks.usage import OtherCpu

MIN_TOKEN: Final = 10  # of the embedded tokenizer's 1,024: no special ones
MAX_TOKEN: Final = 1000
GLANCE_S: Final = 0.4  # how long one looks to see whether the machine is quiet
Draw = Callable[[int], list[int]]  # a new prompt of so many tokens
_Round = tuple[float, dict[str, Sample]]  # CPU that others used in it, in cores; samples by subject


class MeasureError(BenchError):
    """A sample could not be taken, or was not what it claims to be; the message says which."""


class Subject(Protocol):
    """Something whose first token, or whose transfer, is timed."""

    async def measure(self, prompt: Sequence[int]) -> Sample:
        """Take one sample. Raises `MeasureError`: the request failed or took another path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """What samples are taken with, and how long to try."""

    draw: Draw
    meter: OtherCpu
    samples: int  # per subject and cell
    extra_rounds: int  # per cell, to replace rounds that failed or in which others used the CPU
    max_other_cores: float  # above it a round is taken again
    patience_s: float = 0.0  # before each round, for the machine to become quiet


def prompts(seed: int | None) -> Draw:
    """Return what draws prompts of a length; no two are alike, so that no stale KV can pass for fresh. None: no two sessions either."""
    rng = random.Random(seed)  # repeatable, not secret
    return lambda tokens: [rng.randint(MIN_TOKEN, MAX_TOKEN) for _ in range(tokens)]


def rotated(names: Sequence[str], turn: int) -> list[str]:
    """Return the names, each turn beginning with another, so that none always follows the same one."""
    start = turn % len(names)
    return [*names[start:], *names[:start]]


async def measure_cell(cell: Cell, kv: Kv, subjects: Mapping[str, Subject], session: Session) -> Measured:
    """Take all samples of a cell; the first round only warms up. Raises `MeasureError`: every round had a failure."""
    names = list(subjects)
    clean: list[_Round] = []
    noisy: list[_Round] = []  # in case there are too few clean ones
    failures: list[str] = []
    warm = False
    for turn in range(1 + session.samples + session.extra_rounds):
        if len(clean) == session.samples:
            break
        await wait_until_quiet(session)
        session.meter.restart()
        try:
            taken = {name: await _sample(cell, name, subjects[name], session.draw) for name in rotated(names, turn)}
        except MeasureError as exc:
            failures.append(str(exc))
            continue
        if warm:
            cores = session.meter.other_cores()
            (clean if cores <= session.max_other_cores else noisy).append((cores, taken))
        warm = True
    noisy.sort(key=lambda each: each[0])
    chosen = clean + noisy[: session.samples - len(clean)]
    if not chosen:
        raise MeasureError("; ".join(sorted(set(failures))) or "there was no round")
    return Measured(
        cell=cell,
        layers=kv.layers,
        expected_bytes=kv.bytes_of(cell.tokens),
        samples={name: [taken[name] for _, taken in chosen] for name in names},
        other_cores=sum(cores for cores, _ in chosen) / len(chosen),
        noisy_rounds=len(chosen) - len(clean),
        failures=tuple(failures),
    )


async def wait_until_quiet(session: Session) -> None:
    """Give others time to finish what they are doing on this machine."""
    deadline = time.monotonic() + session.patience_s
    while time.monotonic() < deadline:
        session.meter.restart()
        await asyncio.sleep(GLANCE_S)
        if session.meter.other_cores() <= session.max_other_cores:
            return


async def _sample(cell: Cell, name: str, subject: Subject, draw: Draw) -> Sample:
    try:
        return await subject.measure(draw(cell.tokens))
    except MeasureError as exc:
        raise MeasureError(f"{name}, {cell}: {exc}") from exc
