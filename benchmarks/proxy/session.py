"""One session: mocks and subjects are started, then each round loads every subject in turn."""

import gc
import os
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

from baton.loadtest.errors import RunError
from benchmarks import usage
from benchmarks.proxy.figures import Sample
from benchmarks.proxy.load import SHORT, Load
from benchmarks.proxy.stage import Plan, Running, Stage, collector, expect
from benchmarks.proxy.subjects import TRACED, Subject

T = TypeVar("T")


@dataclass(slots=True)
class Noise:
    """Load average before and after the session, and what other processes used in each round."""

    load_before: float
    load_after: float = 0.0
    other_cores: list[float] = field(default_factory=list)  # CPU of others ÷ time, round by round


@dataclass(slots=True, kw_only=True)
class Result:
    """All samples, by subject and round."""

    plan: Plan
    subjects: Sequence[Subject]
    samples: dict[str, list[Sample]]
    memory: dict[str, usage.Memory]  # after the last round
    noise: Noise


async def run(plan: Plan, subjects: Sequence[Subject], folder: Path, say: Callable[[str], None]) -> Result:
    """Measure. Raises `RunError`: a subject does not start, or an answer or a count is not what it must be."""
    async with AsyncExitStack() as stack:
        stage = Stage(plan, folder)
        pairs = {dialect: await stack.enter_async_context(stage.mocks(dialect)) for dialect in stage.dialects}
        traces = await stack.enter_async_context(collector())
        running = [await stack.enter_async_context(stage.start(subject, pairs, traces)) for subject in subjects]
        direct = Load(pairs["vllm"].decode_url, {})
        stack.callback(direct.close)
        noise, others = Noise(os.getloadavg()[0]), usage.OtherCpu(os.getpid())
        samples: dict[str, list[Sample]] = {subject.name: [] for subject in subjects}
        gc.collect()
        stack.callback(gc.unfreeze)
        gc.freeze()  # a collection of the load's process would count as a proxy's time
        for number in range(plan.rounds):
            say(f"round {number + 1} of {plan.rounds}")
            others.restart()
            alone = await _direct(plan, direct)
            first = number % len(running)  # no subject is always the first
            for one in running[first:] + running[:first]:
                samples[one.subject.name].append(await _sample(plan, one, alone))
            noise.other_cores.append(others.other_cores())
        noise.load_after = os.getloadavg()[0]
        memory = {one.subject.name: usage.memory(one.pid) for one in running}
        enough = plan.rounds * plan.short_requests * TRACED > 10
        if enough and not traces.batches and any(subject.dialect == "baton" for subject in subjects):
            raise RunError("no trace has come: Baton was not measured as is said")
    return Result(plan=plan, subjects=subjects, samples=samples, memory=memory, noise=noise)


async def _direct(plan: Plan, load: Load) -> tuple[float, float]:
    first_token_s = median(await load.one_at_a_time(plan.single_requests))
    return first_token_s, (await load.together(plan.streams, plan.tokens)).duration_s


async def _sample(plan: Plan, one: Running, direct: tuple[float, float]) -> Sample:
    _, short_cpu_s = await _metered(one, one.load.short(plan.short_requests, plan.at_once), plan.short_requests)
    singles_s, _ = await _metered(one, one.load.one_at_a_time(plan.single_requests), plan.single_requests)
    await _metered(one, one.load.together(plan.streams, SHORT), plan.streams)  # opens the connections
    starts, starts_cpu_s = await _metered(one, _again(one.load, plan), plan.streams * plan.starts)
    streamed, streams_cpu_s = await _metered(one, one.load.together(plan.streams, plan.tokens), plan.streams)
    return Sample(
        short_requests=plan.short_requests,
        short_cpu_s=short_cpu_s,
        single_first_token_s=median(singles_s),
        direct_first_token_s=direct[0],
        starts_s=median(starts),
        last_start_s=max(starts),
        starts_cpu_s=starts_cpu_s / plan.starts,
        chunks=plan.further_chunks,
        streams_cpu_s=streams_cpu_s,
        streams_s=streamed.duration_s,
        direct_streams_s=direct[1],
    )


async def _again(load: Load, plan: Plan) -> list[float]:
    return [time_s for _ in range(plan.starts) for time_s in (await load.together(plan.streams, SHORT)).first_tokens_s]


async def _metered(one: Running, load: Coroutine[Any, Any, T], requests: int) -> tuple[T, float]:
    before = await one.mocks.settled()
    cpu_s = usage.cpu_s(one.pid)
    came = await load
    await expect(one.mocks, before, requests, one.subject.name)
    return came, usage.cpu_s(one.pid) - cpu_s
