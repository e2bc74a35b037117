"""The proxy's CPU beside a featureless relay's, on mock engines: a short form of the proxy bench, without peers."""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from benchmarks.proxy import session
from benchmarks.proxy.figures import ASGI, BATON, CHUNK, REQUEST
from benchmarks.proxy.stage import Plan
from benchmarks.proxy.subjects import subjects
from benchmarks.quick.ratios import Sample

PLAN: Final = Plan(rounds=5, short_requests=500, single_requests=5, streams=64, starts=2, tokens=96)
_METRICS: Final = {"proxy, CPU per request ÷ relay": REQUEST, "proxy, CPU per chunk ÷ relay": CHUNK}


def measure(folder: Path, plan: Plan = PLAN) -> Iterator[Sample]:
    cores = os.sched_getaffinity(0)
    found, _ = subjects(folder)  # no peer is installed there
    chosen = [subject for subject in found if subject.name in (BATON, ASGI)]
    try:
        taken = asyncio.run(session.run(plan, chosen, folder, lambda line: None)).samples  # noqa: ARG005
    finally:
        os.sched_setaffinity(0, cores)  # the session keeps to one core
    for name, metric in _METRICS.items():
        for ours, theirs in zip(taken[BATON], taken[ASGI], strict=True):
            yield Sample(name, metric.of(ours) / metric.of(theirs))
