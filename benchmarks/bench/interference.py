"""What long prompts do to streams that are running: the gaps between the streams' tokens, before and during them."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, Protocol, runtime_checkable

from benchmarks.overlap.session import Draw, MeasureError
from benchmarks.overlap.subjects import Answer

START_TIMEOUT_S: Final = 20.0
POLL_S: Final = 0.02


@runtime_checkable
class Asked(Protocol):
    """Something that answers requests."""

    async def ask(self, prompt: Sequence[int], max_tokens: int, times: list[float] | None = None) -> Answer: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """The load: streams that run, and long prompts that arrive beside them."""

    streams: int = 4
    stream_prompt_tokens: int = 128
    stream_tokens: int = 7000  # more than there is time for: streams are broken off in the end
    quiet_s: float = 1.5  # the streams alone
    arrivals: int = 8  # of long prompts, at even distances, whatever becomes of the earlier ones
    every_s: float = 1.2
    long_prompt_tokens: int = 3500
    long_answer_tokens: int = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Felt:
    """Gaps between tokens of the running streams before and during the long prompts, and the long prompts' TTFT; s."""

    quiet_itl_s: Sequence[float]
    busy_itl_s: Sequence[float]  # from the first long prompt's arrival until the last one was answered
    long_ttft_s: Sequence[float]


async def interfere(asked: Asked, setting: Setting, draw: Draw) -> Felt:
    """Run the load once. Raises `MeasureError`: a request failed, or a stream ended before the last long prompt was answered."""
    times: list[list[float]] = [[] for _ in range(setting.streams)]
    streams = [
        asyncio.create_task(asked.ask(draw(setting.stream_prompt_tokens), setting.stream_tokens, each))
        for each in times
    ]
    try:
        await _all_running(streams, times)
        alone = time.monotonic()
        await asyncio.sleep(setting.quiet_s)
        began = time.monotonic()
        answers = await _long_prompts(asked, setting, draw, began)
        ended = time.monotonic()
        if done := [stream for stream in streams if stream.done()]:
            raise MeasureError(f"{len(done)} streams ended too early") from done[0].exception()
    finally:
        for stream in streams:
            stream.cancel()
        await asyncio.gather(*streams, return_exceptions=True)
    return Felt(
        quiet_itl_s=[gap for each in times for gap in gaps(each, alone, began)],
        busy_itl_s=[gap for each in times for gap in gaps(each, began, ended)],
        long_ttft_s=[answer.ttft_s for answer in answers],
    )


def gaps(times: Sequence[float], since: float, until: float) -> list[float]:
    """Return the distances of neighbours of which the later one lies in the stretch."""
    return [after - before for before, after in pairwise(times) if since < after <= until]


async def _all_running(streams: Sequence[asyncio.Task[Answer]], times: Sequence[Sequence[float]]) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while not all(times):
        for stream in streams:
            if stream.done():
                stream.result()  # raises what ended it
        if time.monotonic() > deadline:
            raise MeasureError("the streams did not begin")
        await asyncio.sleep(POLL_S)


async def _long_prompts(asked: Asked, setting: Setting, draw: Draw, began: float) -> Sequence[Answer]:
    async def one(at: int) -> Answer:
        prompt = draw(setting.long_prompt_tokens)
        await asyncio.sleep(began + at * setting.every_s - time.monotonic())
        return await asked.ask(prompt, setting.long_answer_tokens)

    async with asyncio.TaskGroup() as group:
        asking = [group.create_task(one(at)) for at in range(setting.arrivals)]
    return [task.result() for task in asking]
