"""A prefill node: vLLM's scheduler with chunked prefill, where every request ends with its first token.

step:   [ rest of the prompt under way | next prompt | beginning of the one after it ]
         └────────────────── at most max_num_batched_tokens ──────────────────────┘

A decode node: every step gives one token to each of its sequences.

Between two changes of the batch the steps are an arithmetic series, since each makes every context one token longer. So
a *stretch* of them is looked at as one:

    t0 ─ step ─ step ─ step ─ … ─ step          n steps of a stretch take  n·d + c·s·n(n−1)/2  (+ work on arrival, once)
         └ first tokens of those that joined    d: the first step, s: sequences, c: seconds per token of context
"""

import math
from bisect import bisect_left
from collections import OrderedDict, deque
from heapq import heappop, heappush
from itertools import count
from typing import Final, NamedTuple

from baton.loadtest.plan.calibration import Decode, Prefill
from baton.loadtest.plan.demand import Job

EARLY_SHARE: Final = 0.25  # of the pool; below it, only prompts that P has begun get room (`early_reserve_share`)


class Chunk(NamedTuple):
    """What a step computes of a prompt."""

    job: Job
    tokens: int  # computed
    kv_tokens: int  # whose KV is to be sent: these, and what the cache had


class Step(NamedTuple):
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


def step_s(speed: Decode, sequences: int, context: float) -> float:
    several_s = speed.several_s if sequences > 1 else 0.0
    return speed.step_s + several_s + speed.sequence_s * sequences + speed.context_token_s * context


class DecodeNode:
    """Its batch, the line of those whose KV is there, and the room in its KV pool."""

    def __init__(self, speed: Decode) -> None:
        self._speed = speed
        self._room = float(speed.kv_tokens or math.inf)
        self._begun: deque[Job] = deque()  # P computes them, and they have no room yet
        self._early: deque[Job] = deque()  # likewise, and P has not begun them (or has, and they are in `_begun`)
        self._ready: deque[Job] = deque()  # KV is there; join at the next step
        self._batch: list[tuple[int, int, Job]] = []  # heap of step after which it ends, number, job
        self._numbers = count()
        self._steps = 0  # made so far
        self._context = 0  # tokens of all sequences, as of the stretch's beginning
        self._began_s = 0.0  # of the stretch
        self._extra_s = 0.0  # work on arrival within the stretch's first step
        self._work_s = 0.0  # work on arrival that the next stretch begins with
        self._free_at = 0.0  # while idle: when work on arrival will be done
        self._stops_after = 0  # steps of the stretch; 0: idle
        self.busy_s = 0.0

    @property
    def idle(self) -> bool:
        return not self._stops_after

    def arrive(self, job: Job, now_s: float) -> float | None:
        """Take notice of a request; return when the stretch is to be ended, if it has to be."""
        self._early.append(job)
        self._reserve()
        if not self._speed.arrival_s:
            return None
        if self.idle:
            self._free_at = max(self._free_at, now_s) + self._speed.arrival_s
            self.busy_s += self._speed.arrival_s
            return None
        self._work_s += self._speed.arrival_s
        return self._cut(now_s)

    def begun(self, job: Job) -> None:
        """P has begun its prompt: it needs room, for P keeps its KV until then."""
        if not (job.reserved or job.begun):
            job.begun = True
            self._begun.append(job)
            self._reserve()

    def ready(self, job: Job, now_s: float) -> float:
        """Its KV is there; return when the stretch is to be ended for it."""
        self._ready.append(job)
        return max(now_s, self._free_at) if self.idle else self._cut(now_s)

    def turn(self, now_s: float) -> tuple[list[Job], list[Job], float | None]:
        """End a stretch and begin the next one; return who ended, who got room by that, when the next ends (None: idle)."""
        ended = self._end_stretch(now_s)
        given_room = self._reserve() if ended else []
        joined = []
        while self._ready and len(self._batch) < self._speed.max_num_seqs:
            job = self._ready.popleft()
            job.context = job.demand.input_tokens
            self._context += job.context
            job.ends_at_step = self._steps + job.demand.output_tokens
            heappush(self._batch, (job.ends_at_step, next(self._numbers), job))
            joined.append(job)
        if not self._batch:
            self._stops_after = 0
            self._free_at, self._work_s = now_s + self._work_s, 0.0
            return ended, given_room, None
        self._began_s, self._extra_s, self._work_s = now_s, self._work_s, 0.0
        self._stops_after = self._batch[0][0] - self._steps
        first_s = self._after(1)
        for job in joined:
            job.first_at = first_s
            job.beside = len(self._batch) - 1
        return ended, given_room, self._after(self._stops_after)

    def _end_stretch(self, now_s: float) -> list[Job]:
        if self.idle:
            return []
        self.busy_s += now_s - self._began_s
        self._steps += self._stops_after
        self._context += self._stops_after * len(self._batch)
        ended = []
        while self._batch and self._batch[0][0] == self._steps:
            job = heappop(self._batch)[2]
            job.last_at = now_s
            self._context -= job.context + job.demand.output_tokens
            self._room += job.demand.input_tokens + job.demand.output_tokens
            ended.append(job)
        return ended

    def _reserve(self) -> list[Job]:
        """Give room for prompt and whole answer, first come first served; return who got it."""
        given: list[Job] = []
        while self._begun and self._fits(self._begun[0]):
            given.append(self._begun.popleft())
        while self._early and not self._begun:
            if self._early[0].begun:
                self._early.popleft()
            elif self._room >= EARLY_SHARE * (self._speed.kv_tokens or math.inf) and self._fits(self._early[0]):
                given.append(self._early.popleft())
            else:
                break
        return given

    def _fits(self, job: Job) -> bool:
        tokens = job.demand.input_tokens + job.demand.output_tokens
        if tokens > self._room:
            return False
        self._room -= tokens
        job.reserved = True
        return True

    def _after(self, steps: int) -> float:
        speed, sequences = self._speed, len(self._batch)
        first_s = step_s(speed, sequences, self._context)
        growth_s = speed.context_token_s * sequences
        return self._began_s + self._extra_s + steps * first_s + growth_s * steps * (steps - 1) / 2

    def _cut(self, now_s: float) -> float:
        """End the stretch with the step that is under way; return when that is."""
        self._stops_after = 1 + bisect_left(range(1, self._stops_after), now_s, key=self._after)
        return self._after(self._stops_after)
