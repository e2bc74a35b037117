"""A prefill node: vLLM's scheduler with chunked prefill, where every request ends with its first token.

step:   [ rest of the prompt under way | next prompt | beginning of the one after it ]
         └────────────────── at most max_num_batched_tokens ──────────────────────┘
"""

import math
from collections import OrderedDict, deque
from typing import NamedTuple

from baton.loadtest.plan.calibration import Prefill
from baton.loadtest.plan.demand import Job


class Chunk(NamedTuple):
    """What a step computes of a prompt."""

    job: Job
    tokens: int  # computed
    kv_tokens: int  # whose KV is to be sent: these, and what the cache had


class Step(NamedTuple):
    """One step."""

    began_s: float
    ends_s: float
    chunks: list[Chunk]


class PrefillNode:
    """Its queue, its KV pool, its prefix cache."""

    def __init__(self, speed: Prefill) -> None:
        self._speed = speed
        self._waiting: deque[Job] = deque()
        self._running: list[Job] = []  # prompts that are begun and not complete
        self._room = float(speed.kv_tokens or math.inf)
        self._cache: OrderedDict[str, int] = OrderedDict()  # block → its tokens, least recently used first
        self._cached_tokens = 0
        self.least_room = self._room  # there has ever been
        self.step: Step | None = None
        self.busy_s = 0.0

    def take(self, job: Job) -> None:
        job.behind = len(self._waiting) + len(self._running)
        self._waiting.append(job)

    def begin(self, now_s: float) -> Step | None:
        if self.step is not None:
            return None
        chunks = self._schedule()
        if not chunks:
            return None
        took_s = self._duration_s(chunks)
        self.busy_s += took_s
        self.step = Step(now_s, now_s + took_s, chunks)
        return self.step

    def end(self) -> Step:
        """End the step; chunks of complete prompts are those whose job has `computed` = its length."""
        assert self.step is not None
        ended, self.step = self.step, None
        for chunk in ended.chunks:
            chunk.job.computed += chunk.tokens
            if chunk.job.computed == chunk.job.demand.input_tokens:
                self._running.remove(chunk.job)
                self._remember(chunk.job)
        return ended

    def release(self, job: Job) -> None:
        """Its KV has left: the room is free."""
        self._room += job.demand.input_tokens

    def _schedule(self) -> list[Chunk]:
        budget, chunks = self._speed.max_num_batched_tokens, []
        for job in self._running:
            tokens = min(budget, job.demand.input_tokens - job.computed)
            if tokens:
                chunks.append(Chunk(job, tokens, tokens))
                budget -= tokens
        while budget and self._waiting and len(self._running) < self._speed.max_num_seqs:
            job = self._waiting[0]
            if job.demand.input_tokens > self._room:
                break
            self._waiting.popleft()
            self._running.append(job)
            self._room -= job.demand.input_tokens
            self.least_room = min(self.least_room, self._room)
            job.cached = job.computed = self._hit(job)
            tokens = min(budget, job.demand.input_tokens - job.computed)
            chunks.append(Chunk(job, tokens, tokens + job.cached))
            budget -= tokens
        return chunks

    def _duration_s(self, chunks: list[Chunk]) -> float:
        speed = self._speed
        tokens = sum(chunk.tokens for chunk in chunks)
        begun = sum(chunk.job.computed == chunk.job.cached for chunk in chunks)
        weighted = sum(chunk.tokens * (chunk.job.computed + chunk.tokens / 2) for chunk in chunks)
        return speed.step_s + speed.prompt_s * begun + speed.token_s * tokens + speed.token_context_s * weighted

    def _hit(self, job: Job) -> int:
        """Return how many leading tokens are cached; the last token is always computed."""
        if not self._speed.prefix_cache:
            return 0
        blocks = 0
        for name in job.demand.blocks:
            if name not in self._cache:
                break
            blocks += 1
        return min(blocks * job.demand.block_tokens, job.demand.input_tokens - 1)

    def _remember(self, job: Job) -> None:
        if not self._speed.prefix_cache:
            return
        cache, limit = self._cache, self._speed.kv_tokens or math.inf
        for name in reversed(job.demand.blocks):  # the beginning of a prompt is what is worth most: dropped last
            if name in cache:
                cache.move_to_end(name)
            else:
                cache[name] = job.demand.block_tokens
                self._cached_tokens += job.demand.block_tokens
        while self._cached_tokens > limit:
            self._cached_tokens -= cache.popitem(last=False)[1]
