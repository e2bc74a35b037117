import asyncio
import time
from collections.abc import Sequence

import pytest

from benchmarks.bench.interference import Setting, gaps, interfere
from benchmarks.overlap.session import MeasureError, prompts
from benchmarks.overlap.subjects import Answer

QUICK = Setting(
    streams=2,
    stream_prompt_tokens=3,
    stream_tokens=100_000,
    quiet_s=0.05,
    arrivals=3,
    every_s=0.05,
    long_prompt_tokens=50,
    long_answer_tokens=1,
)


class Engine:
    """Answers a token each 2 ms, but none while it computes a long prompt, which takes 30 ms."""

    def __init__(self, stream_tokens: int = QUICK.stream_tokens) -> None:
        self.stream_tokens = stream_tokens
        self.cancelled = 0
        self._free = asyncio.Event()
        self._free.set()

    async def ask(self, prompt: Sequence[int], max_tokens: int, times: list[float] | None = None) -> Answer:
        times = [] if times is None else times
        began = time.monotonic()
        if len(prompt) == QUICK.long_prompt_tokens:
            self._free.clear()
            await asyncio.sleep(0.03)
            self._free.set()
            return Answer(began, [time.monotonic()], {})
        try:
            for _ in range(self.stream_tokens):
                await asyncio.sleep(0.002)
                await self._free.wait()
                times.append(time.monotonic())
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return Answer(began, times, {})


async def test_the_gaps_that_a_long_prompt_tears_are_seen_and_those_before_it_are_apart() -> None:
    """Every arrival holds both streams up for as long as its prefill takes. In the end the streams are broken off."""
    engine = Engine()

    felt = await interfere(engine, QUICK, prompts(1))

    assert engine.cancelled == QUICK.streams
    assert len(felt.long_ttft_s) == 3
    assert sum(gap > 0.025 for gap in felt.busy_itl_s) >= 4
    assert len(felt.quiet_itl_s) >= 4


async def test_a_stream_that_ends_too_early_is_an_error() -> None:
    """There would be nothing left that could be disturbed."""
    with pytest.raises(MeasureError, match="ended too early"):
        await interfere(Engine(stream_tokens=10), QUICK, prompts(1))


def test_a_gap_belongs_to_the_stretch_in_which_it_ends() -> None:
    """A stall that began before the stretch is felt inside of it."""
    assert gaps([1.0, 2.0, 5.0, 6.0, 9.0], since=4.0, until=6.0) == [3.0, 1.0]
