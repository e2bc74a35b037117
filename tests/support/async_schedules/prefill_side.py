"""P's scheduler for layouts with windows, groups and states: vLLM's block manager under our own scheduler side.

P computes in chunks of up to four blocks, so blocks that fall out of a window are freed, and given away again, within one
prompt. As under asynchronous scheduling, a prompt whose last chunk has been issued may still be preempted.
"""

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, NamedTuple

from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import Request

from baton.kv_connector.handoff.metadata import PrefillStep
from baton.kv_connector.scheduler_side.prefill import PrefillScheduler
from tests.support.async_schedules.layouts import CHUNK_TOKENS, PROMPT_TOKENS, Layout, request
from tests.support.ranks import BLOCK_TOKENS, SECRET


class Write(NamedTuple):
    """What one step writes to one block of a group, in each of its layers."""

    group: int
    block: int
    place: int  # of the first token in its prompt
    tokens: Sequence[int]  # of a state: all that it has seen
    running: int = 0  # of a state: the block in which the layer finds the one that it goes on from
    before: int = 0  # of a state: tokens that that one has seen; 0: there is none


class Copied(NamedTuple):
    """A state that vLLM copies before a step's forward pass, to the block in which the layers go on from it."""

    group: int
    source: int  # block
    target: int  # block


class Step(NamedTuple):
    told: PrefillStep
    writes: list[list[Write]]
    given: list[int]  # blocks that were free before it
    copied: list[Copied]


@dataclass(slots=True, eq=False)
class Text:
    name: str
    tokens: list[int]
    prefill: Request
    decode: Request
    computed: int = 0  # on P
    known: list[int] = field(default_factory=list)  # blocks that P's worker has been told of, by group
    voided: bool = False
    preemptions: int = 0
    stage: str = "unknown"  # on D
    reason: str = ""
    closed: bool = False
    cancelled: bool = False

    @property
    def complete(self) -> bool:
        return bool(self.computed == self.prefill.num_prompt_tokens)


def output(new: Sequence[Any] = (), cached: Sequence[Any] = (), preempted: set[str] | None = None) -> Any:
    """A `SchedulerOutput`: per request its id, its new blocks by group, tokens computed before, tokens scheduled."""
    return SimpleNamespace(
        preempted_req_ids=preempted or set(),
        scheduled_new_reqs=[
            SimpleNamespace(req_id=r, block_ids=blocks, num_computed_tokens=computed, prompt_token_ids=[])
            for r, blocks, computed, _ in new
        ],
        scheduled_cached_reqs=SimpleNamespace(
            req_ids=[r for r, *_ in cached],
            new_block_ids=[blocks for _, blocks, *_ in cached],
            num_computed_tokens=[computed for _, _, computed, _ in cached],
        ),
        num_scheduled_tokens={r: scheduled for r, _, _, scheduled in [*new, *cached]},
    )


def _scheduler_of(layout: Layout) -> Any:
    """As much of vLLM's scheduler as decides where chunks end that leave states for the prefix cache."""
    return SimpleNamespace(
        block_size=BLOCK_TOKENS,
        cache_config=SimpleNamespace(block_size=BLOCK_TOKENS),
        scheduler_config=SimpleNamespace(long_prefill_token_threshold=0),
        hash_block_size=BLOCK_TOKENS,
        max_num_scheduled_tokens=CHUNK_TOKENS,
        use_eagle_block_drop=False,
        mamba_partial_cache_hit=False,
        mamba_shared_prefix_checkpoint=False,
        mamba_has_prefill_checkpoint_blocks=layout.leaves_checkpoints,
        mamba_prefill_checkpoint_alignment=1 if layout.leaves_checkpoints else None,
    )


class PrefillSide:
    """P's scheduler. Its prompts often begin alike, so that they hit each other's prefix, even in the step that writes it (E5)."""

    def __init__(self, chance: random.Random, layout: Layout, prompts: int) -> None:
        self.seen: Counter[str] = Counter()
        self._random = chance
        self.manager = layout.manager()
        self.side = PrefillScheduler(SECRET, layout.block_tokens, layout.grids.prefill, groups=layout.groups)
        self.side.bind_pool(self.manager.block_pool)
        self._groups = range(len(layout.windows))
        self._block_tokens = [layout.tokens_of(group) for group in self._groups]
        self._groups_of_layout = layout.groups
        self._scheduler = _scheduler_of(layout) if layout.caches_states else None
        self._whole = self._random_tokens(PROMPT_TOKENS)  # what several prompts begin with
        self.prompts = {name: self._draw(name, layout) for name in [f"r{number}" for number in range(prompts)]}
        self._to_come = list(self.prompts.values())
        self._to_restart: list[Text] = []
        self._restarts_are_new = chance.random() < 0.5  # to vLLM's V2 runner; V1 is told of a request that it knows
        self._known: set[str] = set()
        self._running: list[Text] = []
        self._held: dict[str, Text] = {}
        self._given: list[int] = []
        self._copied: list[Copied] = []

    @property
    def busy(self) -> bool:
        """Whether anything is left to be computed or to be let go."""
        return bool(self._to_come or self._to_restart or self._running or self._held)

    def check(self) -> str:
        """The pool must be whole again."""
        pool = self.manager.block_pool
        left = pool.num_gpu_blocks - 1 - pool.get_num_free_blocks()
        return f"{left} blocks of P have not come back" if left else ""

    def release(self, requests: set[str]) -> None:
        """P's worker lets go of these requests' blocks."""
        self.side.update(requests)
        for name in requests & self._held.keys():
            self.manager.free(self._held.pop(name).prefill)

    def step(self) -> Step:
        """Schedule the next forward pass; its prompts may be none."""
        preempted = self._preempt()
        self._finish()
        self._given, self._copied = [], []
        self.manager.new_step_starts()
        writes: list[list[Write]] = []
        cached = [made for text in self._running if (made := self._advance(text, writes))]
        new: list[Any] = []
        while (queues := [*filter(None, (self._to_restart, self._to_come))]) and self._random.random() < 0.5:
            waiting = self._random.choice(queues)
            text = waiting[-1]
            if text.name not in self._known:
                self._known.add(text.name)
                self.side.add_request(text.prefill)
            found, hit, text.prefill.shared_prefix_boundary = self.manager.get_computed_blocks(text.prefill)
            if (made := self._advance(text, writes, found, hit)) is None:
                break
            waiting.pop()
            self._running.append(text)
            self.seen["restarted with a hit" if text.preemptions else "hit on P"] += hit > 0
            told = cached if text.preemptions and not self._restarts_are_new else new
            told.append((made[0], tuple(self._ids(text)), *made[2:]))
        return Step(self.side.take_step(output(new, cached, preempted)), writes, self._given, self._copied)

    def _draw(self, name: str, layout: Layout) -> Text:
        one_more = (
            PROMPT_TOKENS // BLOCK_TOKENS * BLOCK_TOKENS + 1
        )  # D receives whole blocks alone, and caches the state behind them
        length = self._random.choice(
            (PROMPT_TOKENS, one_more, self._random.randint(1, PROMPT_TOKENS), self._edge(layout))
        )
        shared = self._random.choice((0, length, self._random.randint(0, length)))
        tokens = [*self._whole[:shared], *self._random_tokens(length - shared)]
        grids = layout.grids
        return Text(name, tokens, request(name, tokens, "prefill", grids), request(name, tokens, "decode", grids))

    def _edge(self, layout: Layout) -> int:
        """Lengths at which the window of the last token begins with the last token of a block, or a chunk does (and about it)."""
        return (
            abs(self._random.choice(layout.windows))
            - 1
            + BLOCK_TOKENS * self._random.randint(1, 8)
            + self._random.randint(-1, 1)
        )

    def _random_tokens(self, length: int) -> list[int]:
        return [self._random.randrange(1 << 16) for _ in range(length)]

    def _ids(self, text: Text) -> list[list[int]]:
        return [list(ids) for ids in self.manager.get_block_ids(text.prefill.request_id)]

    def _advance(
        self, text: Text, writes: list[list[Write]], found: Any = None, hit: int = 0
    ) -> tuple[str, Any, int, int] | None:
        """Schedule one chunk, if there are blocks for it."""
        start = text.computed or hit
        if text.complete:
            return None
        scheduled = min(
            text.prefill.num_prompt_tokens - start,
            self._random.choice((CHUNK_TOKENS, self._random.randint(1, CHUNK_TOKENS))),
        )
        if self._scheduler:
            aligned = Scheduler._mamba_block_aligned_split(self._scheduler, text.prefill, scheduled, hit)
            if aligned == 0:  # there is always budget for a block
                aligned = min(BLOCK_TOKENS - start % BLOCK_TOKENS, text.prefill.num_prompt_tokens - start)
            scheduled = aligned
        before = self._ids(text) if text.computed else [[] for _ in self._groups]
        given = self.manager.allocate_slots(text.prefill, scheduled, hit, found)
        if given is None:
            self.seen["no room on P"] += 1
            return None
        after = self._ids(text)
        self._given += {block for ids in given.get_block_ids() for block in ids if block}
        self.seen["recycled within a prompt"] += any(
            block in old for old in before for ids in given.get_block_ids() for block in ids if block
        )
        text.prefill.num_computed_tokens = text.computed = start + scheduled
        writes.append([write for group in self._groups for write in self._writes(text, group, after[group], start)])
        return text.prefill.request_id, given.get_block_ids(allow_none=True), start, scheduled

    def _writes(self, text: Text, group: int, table: list[int], start: int) -> list[Write]:
        length, tokens, stop = self._block_tokens[group], text.tokens, text.computed
        if self._groups_of_layout[group].is_state:
            left = self.manager.coordinator.single_type_managers[group]._checkpoints if self._scheduler else {}
            checkpoint = [left[text.prefill.request_id]] if text.prefill.request_id in left else []
            last = (stop - 1) // length
            if start and (start - 1) // length != last:
                self._copied.append(Copied(group, table[(start - 1) // length], table[last]))
            return [
                Write(group, table[block], 0, tokens[:seen], table[last], start)
                for seen, block in [*checkpoint, (stop, last)]
            ]
        places = range(start // length, -(-stop // length))
        bounds = [(max(start, index * length), min(stop, (index + 1) * length)) for index in places]
        return [
            Write(group, table[index], first, tokens[first:last])
            for index, (first, last) in zip(places, bounds, strict=True)
        ]

    def _finish(self) -> None:
        """The last step's output: prompts that are complete end, and vLLM frees what no later token reads."""
        for text in [text for text in self._running if text.complete]:
            self._running.remove(text)
            before = self._ids(text)
            self.manager.remove_skipped_blocks(text.prefill.request_id, text.computed)
            self.seen["freed at the end"] += self._ids(text) != before
            if self.side.finish_request(text.prefill, aborted=False):
                self._held[text.prefill.request_id] = text
            else:
                self.manager.free(text.prefill)

    def _preempt(self) -> set[str]:
        """Now and then, often when few blocks are free, even a prompt whose last chunk has just been issued (E7).

        It starts again from what is cached; the second time its client leaves.
        """
        if not self._running or self._random.random() > (
            0.5 if self.manager.block_pool.get_num_free_blocks() < 4 else 0.05
        ):
            return set()
        victim = self._random.choice(self._running)
        self._running.remove(victim)
        victim.voided = True
        self.manager.free(victim.prefill)
        victim.computed = victim.prefill.num_computed_tokens = 0
        victim.preemptions += 1
        self.seen["preempted"] += 1
        if victim.preemptions == 1:
            self._to_restart.append(victim)
        else:
            self.side.finish_request(victim.prefill, aborted=True)
        return {victim.prefill.request_id}
