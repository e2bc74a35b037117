"""`python -m benchmarks.proxy.open_streams`: how many streams Baton's proxy holds open at once, and what each one costs.

Streams are opened one after the other; once all are open they run on together and are read to their ends. The proxy's
memory (PSS: a shared page counts in shares) is taken before the first one and while all are open.
"""

import argparse
import asyncio
import json
import math
import resource
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

import uvloop

from baton.loadtest import words
from baton.loadtest.errors import RunError, UsageError
from baton.loadtest.run.environment import environment, now
from benchmarks import harness, usage
from benchmarks.proxy.load import SHORT, Load, Taken
from benchmarks.proxy.stage import Plan, Running, Stage, collector, expect
from benchmarks.proxy.subjects import OURS

_OF_A_STREAM: Final = 2  # descriptors, of the proxy
_UNEVEN: Final = 1.1  # workers do not get equal numbers of streams
_SPARE: Final = 500
WARM_UP: Final = 1000  # streams that come before, all at once: what only the first ones cost is not of the others


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    streams: int
    workers: int
    opened_in_s: float
    open_for_s: float
    before_bytes: int  # PSS of the proxy's process tree
    after_bytes: int  # likewise, with all streams open

    @property
    def stream_bytes(self) -> float:
        return (self.after_bytes - self.before_bytes) / self.streams


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)

    def take() -> int:
        _allow_descriptors(arguments.streams, arguments.workers)
        about = {"when": now(), **environment()}
        with tempfile.TemporaryDirectory(prefix="open-streams-") as folder:
            found = uvloop.run(run(arguments, Path(folder)))
        print(json.dumps({**about, **asdict(found), "stream_bytes": round(found.stream_bytes)}))
        return 0

    return harness.run("open_streams", take, OSError)


async def run(given: argparse.Namespace, folder: Path) -> Found:
    """Open and read the streams. Raises `RunError`: no proxy, an answer is not whole, or they were not all open together."""
    plan = Plan(itl_ms=given.itl_s * 1000, streams=1)
    subject = replace(OURS[0], command=lambda place: [*OURS[0].command(place), "--workers", str(given.workers)])
    stage = Stage(plan, folder)
    async with (
        collector() as traces,
        stage.mocks("baton") as pair,
        stage.start(subject, {"baton": pair}, traces) as one,
    ):
        load = Load(one.load.url, {}, timeout_s=given.timeout_s)
        try:
            await load.together(min(WARM_UP, given.streams), SHORT)
            return await _measure(given, one, load)
        finally:
            load.close()


async def _measure(given: argparse.Namespace, one: Running, load: Load) -> Found:
    before, before_bytes = await one.mocks.settled(), usage.memory(one.pid).pss_bytes
    began_s = time.monotonic()
    answers = [Taken() for _ in range(given.streams)]
    reading = asyncio.create_task(load.one_by_one(answers, given.tokens, given.starts_per_s))
    while not all(answer.first_s for answer in answers):
        if reading.done():
            await reading
        await asyncio.sleep(0.1)
    opened_s, after_bytes = time.monotonic(), usage.memory(one.pid).pss_bytes
    if any(answer.ended for answer in answers):
        raise RunError("the first streams had ended before the last ones were open: ask for more --tokens")
    await reading
    ended_s = time.monotonic()
    await expect(one.mocks, before, given.streams, one.subject.name)
    return Found(
        streams=given.streams,
        workers=given.workers,
        opened_in_s=opened_s - began_s,
        open_for_s=ended_s - opened_s,
        before_bytes=before_bytes,
        after_bytes=after_bytes,
    )


def _allow_descriptors(streams: int, workers: int) -> None:
    """Allow us, and so what we start, as many open files as may be allowed. Raises `UsageError`: that is too few."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    wanted = max(streams, _OF_A_STREAM * math.ceil(streams / workers)) * _UNEVEN + _SPARE
    if wanted > hard:
        raise UsageError(f"a process would want up to {wanted:.0f} open files, and may have {hard}: see ulimit -n")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.proxy.open_streams", description="Many open streams through Baton's proxy"
    )
    add = parser.add_argument
    add("--streams", type=words.count, default=8000)
    add("--workers", type=words.count, default=1, help="of the proxy")
    add("--starts-per-s", type=words.above_0, default=400.0)
    add("--itl-s", type=words.above_0, default=2.0, help="time between two tokens of a stream")
    add("--tokens", type=words.count, default=30)
    add("--timeout-s", type=words.above_0, default=300.0, help="of each stream")
    return parser


if __name__ == "__main__":
    sys.exit(main())
