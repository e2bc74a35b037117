"""P's and D's schedulers for layouts with windows, groups and states: vLLM's block manager under our own scheduler sides.

P computes in chunks of up to 512 tokens, so blocks that fall out of a window are freed, and given away again, within one
prompt. D reads what the prompt's last token would read, in every layer, when its KV has been received and until it gives the
blocks back: what its attention reads, or the state that all tokens before it have left.
"""

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

from vllm.v1.request import Request

from baton.contracts.configuration.schema import TransferConfig
from baton.kv_connector.config import ConnectorConfig
from baton.kv_connector.metadata import DecodeReport, PrefillStep
from baton.kv_connector.scheduler_side.decode import DecodeScheduler
from baton.kv_connector.scheduler_side.prefill import PrefillScheduler
from baton.kv_connector.worker_side.decode import DecodeWorker
from tests.support.async_schedules.kv_manager import BLOCK_TOKENS, GroupMemory, Layout, content, request, state
from tests.support.ranks import SECRET

CHUNK_TOKENS = 512


class Write(NamedTuple):
    """What one step writes to one block of a group, in each of its layers."""

    group: int
    block: int
    place: int  # of the first token in its prompt
    tokens: Sequence[int]  # of a state: all that it has seen


class Step(NamedTuple):
    """One forward pass."""

    told: PrefillStep
    writes: list[list[Write]]


@dataclass(slots=True, eq=False)
class Text:
    """One prompt."""

    name: str
    tokens: list[int]
    prefill: Request
    decode: Request
    computed: int = 0  # on P
    known: list[int] = field(default_factory=list)  # blocks that P's worker has been told of, by group
    voided: bool = False
    stage: str = "unknown"  # on D
    reason: str = ""
    closed: bool = False
    cancelled: bool = False

    @property
    def complete(self) -> bool:
        """Whether P has scheduled all of it."""
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


class GroupTraffic:
    """P's scheduler."""

    def __init__(self, chance: random.Random, layout: Layout, prompts: int) -> None:
        self.seen: Counter[str] = Counter()
        self._random = chance
        self.manager = layout.manager()
        self.side = PrefillScheduler(SECRET, layout.block_tokens, groups=layout.groups)
        self.side.bind_pool(self.manager.block_pool, self.manager)
        self._groups = range(len(layout.windows))
        self._is_state = [group.is_state for group in layout.groups]
        self._whole = self._random_tokens(2000)  # what several prompts begin with
        self.prompts = {name: self._draw(name, layout) for name in [f"r{number}" for number in range(prompts)]}
        self._to_come = list(self.prompts.values())
        self._known: set[str] = set()
        self._running: list[Text] = []
        self._held: dict[str, Text] = {}
        self._tables: dict[str, list[list[int]]] = {}

    @property
    def busy(self) -> bool:
        """Whether anything is left to be computed or to be let go."""
        return bool(self._to_come or self._running or self._held)

    def release(self, requests: set[str]) -> None:
        """P's worker lets go of these requests' blocks."""
        self.side.update(requests)
        for name in requests:
            self.manager.free(self._held.pop(name).prefill)

    def step(self) -> Step:
        """Schedule the next forward pass; its prompts may be none."""
        self._finish()
        preempted = self._preempt()
        writes: list[list[Write]] = []
        cached = [made for text in self._running if (made := self._advance(text, writes))]
        new = []
        while self._to_come and self._random.random() < 0.5:
            text = self._to_come[-1]
            if text.name not in self._known:
                self._known.add(text.name)
                self.side.add_request(text.prefill)
            found, hit, _ = self.manager.get_computed_blocks(text.prefill)
            if (made := self._advance(text, writes, found, hit)) is None:
                break
            self._to_come.pop()
            self._running.append(text)
            self.seen["hit on P"] += hit > 0
            new.append((made[0], tuple(self._ids(text)), *made[2:]))
        return Step(self.side.take_step(output(new, cached, preempted)), writes)

    def _draw(self, name: str, layout: Layout) -> Text:
        length = self._random.choice((1500, 1500, self._random.randint(1, 1500), self._edge(layout)))
        shared = self._random.choice((0, length, self._random.randint(0, length)))
        tokens = [*self._whole[:shared], *self._random_tokens(length - shared)]
        return Text(name, tokens, request(name, tokens, "prefill"), request(name, tokens, "decode"))

    def _edge(self, layout: Layout) -> int:
        """Lengths at which the window of the last token begins with the last token of a block (and about it)."""
        return (
            self._random.choice(layout.windows)
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
        before = self._ids(text) if text.computed else [[] for _ in self._groups]
        given = self.manager.allocate_slots(text.prefill, scheduled, hit, found)
        if given is None:
            self.seen["no room on P"] += 1
            return None
        after = self._ids(text)
        self.seen["recycled within a prompt"] += any(
            block in old for old in before for ids in given.get_block_ids() for block in ids if block
        )
        text.prefill.num_computed_tokens = text.computed = start + scheduled
        writes.append(
            [
                write
                for group in self._groups
                for write in self._writes(group, after[group], text.tokens, start, text.computed)
            ]
        )
        return text.prefill.request_id, given.get_block_ids(allow_none=True), start, scheduled

    def _writes(self, group: int, table: list[int], tokens: list[int], start: int, stop: int) -> list[Write]:
        if self._is_state[group]:
            return [Write(group, table[0], 0, tokens[:stop])]
        places = range(start // BLOCK_TOKENS, -(-stop // BLOCK_TOKENS))
        bounds = [(max(start, index * BLOCK_TOKENS), min(stop, (index + 1) * BLOCK_TOKENS)) for index in places]
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
        """Now and then, and when nobody has room."""
        if not self._running or self._random.random() > (
            0.5 if self.manager.block_pool.get_num_free_blocks() < 4 else 0.05
        ):
            return set()
        victim = self._random.choice(self._running)
        self._running.remove(victim)
        victim.voided = True
        self.manager.free(victim.prefill)
        self.seen["preempted"] += 1
        return {victim.prefill.request_id}


class GroupDecodeSide:
    """D's scheduler."""

    def __init__(
        self, chance: random.Random, worker: DecodeWorker, memory: GroupMemory, layout: Layout, texts: Sequence[Text]
    ) -> None:
        self.problem = ""
        self.reserved = 0
        self.seen: Counter[str] = Counter()
        self._random = chance
        self._worker = worker
        self._memory = memory
        self._layout = layout
        self._texts = {text.decode.request_id: text for text in texts}
        self.manager = layout.manager()
        config = ConnectorConfig(
            runtime_dir=Path(), secret_file=Path(), weights="w", transfer=TransferConfig(early_reserve_share=0.0)
        )
        self.side = DecodeScheduler(config, SECRET, layout.block_tokens, groups=layout.groups)
        self.side._outcomes.close()
        self.side._outcomes = SimpleNamespace(send=lambda *_: None)  # type: ignore[assignment]  # there is no node
        self.side._ledger.bind(self.manager.block_pool)
        self.side.integrity.bind(self.manager.block_pool, self.manager)

    def act(self) -> None:
        """Go on with one prompt, and take in what the worker has to say."""
        self._poll()
        text = self._random.choice(list(self._texts.values()))
        if text.stage == "unknown":
            text.stage = "watched"
            self.side.add_request(text.decode)
            self._told()
        elif text.stage == "watched":
            self._reserve(text)
        elif text.stage == "reserved" and self._random.random() < 0.002:
            text.stage, text.cancelled = "failed", True
            self.side.finish_request(text.decode)
            self._told()
        elif text.stage == "loaded" and text.closed and self._random.random() < 0.2:
            self._end(text)

    def check(self) -> str:
        """Look once more at everything that has been loaded and not been given back; then the pool must be whole."""
        for text in self._texts.values():
            if text.stage == "loaded":
                self._compare(text)
                self._end(text)
        left = self.manager.block_pool.num_gpu_blocks - 1 - self.manager.block_pool.get_num_free_blocks()
        return self.problem or (f"{left} blocks of D have not come back" if left else "")

    def unfinished(self) -> list[str]:
        """Prompts that should have arrived and have not."""
        return [
            f"{name}: {text.stage} {text.reason}"
            for name, text in self._texts.items()
            if text.stage not in ("loaded", "ended") and not text.voided and not text.cancelled
        ]

    def _told(self) -> None:
        self._worker.begin_step(self.side.take_step(output()))

    def _reserve(self, text: Text) -> None:
        found, hit, _ = self.manager.get_computed_blocks(text.decode)
        missing, _ = self.side.match(text.decode, hit)
        if missing is None:
            return
        if missing == 0:  # all but the last token is here: D computes that
            text.stage = "ended"
            self.side.finish_request(text.decode)
            self._told()
            return
        if (
            self.manager.allocate_slots(
                text.decode, 0, hit, found, num_external_computed_tokens=missing, delay_cache_blocks=True
            )
            is None
        ):
            return
        text.decode.num_computed_tokens = hit + missing
        text.stage = "reserved"
        self.reserved += 1
        self.seen["hit on D"] += hit > 0
        self.side.allocated(text.decode, self.manager.get_blocks(text.decode.request_id).blocks, missing)
        for reservation in self.side._ledger.reservations().get(text.decode.request_id, ()):
            for layer in range(self._layout.num_layers):
                self._memory.write(layer, reservation, 0, b"what was here before".ljust(BLOCK_TOKENS * 16, b"!"))
        self._told()

    def _poll(self) -> None:
        finished, failed = self._worker.take_results()
        report = self._worker.take_report() or DecodeReport()
        closed = list(report.closed)
        self.side.update(report, finished)
        for name in finished:
            text = self._texts[name]
            if text.cancelled:
                self.manager.free(text.decode)
            elif name in failed:
                text.stage, text.reason = "failed", report.failed.get(name, text.reason)
                self.manager.free(text.decode)
            else:
                text.stage = "loaded"
                self.manager.cache_blocks(text.decode, len(text.tokens) - 1)
                self._compare(text)
        for name, reason in report.failed.items():
            self._texts[name].stage, self._texts[name].reason = "failed", reason
        for name in closed:
            self._texts[name].closed = True

    def _end(self, text: Text) -> None:
        text.stage = "ended"
        self.side.finish_request(text.decode)
        self.manager.free(text.decode)
        self._told()

    def _compare(self, text: Text) -> None:
        """Read what the attention of the last token reads."""
        tables = self.manager.get_block_ids(text.decode.request_id)
        length = len(text.tokens)
        for layer in range(self._layout.num_layers):
            group = self._layout.group_of(layer)
            if self._layout.is_state(layer):
                before, found = state(text.tokens[:-1], layer), self._memory.read_state(layer, tables[group][0])
                if found != before:
                    self.problem = self.problem or f"{text.name} layer {layer}: found {found!r} for {before!r}"
                continue
            window = self._layout.windows[group] or length
            for place in range(max(0, length - window), length - 1):
                block = tables[group][place // BLOCK_TOKENS]
                expected = content(text.tokens[place], layer, place)
                if block == 0 or (found := self._memory.read(layer, block, place)) != expected:
                    shown = "the null block" if block == 0 else found
                    self.problem = (
                        self.problem or f"{text.name} layer {layer} token {place}: found {shown!r} for {expected!r}"
                    )
                    return
