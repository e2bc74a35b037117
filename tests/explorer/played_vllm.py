"""vLLM's scheduler and block pool, played.

vLLM counts who holds a block, gives one that is *cached* to each prompt that begins with the same tokens, and one that nothing holds to
any request. It caches what it computes as soon as that is scheduled (E5), and what it receives once that is reported received.
"""

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

from baton.contracts.kv_transfer import TransferParams, sign
from baton.kv_connector.handoff.metadata import DecodeReport
from baton.kv_connector.scheduler_side.sides import SchedulerSides
from baton.kv_connector.worker_side.sides import WorkerSides
from tests.explorer.both_ways import Leg
from tests.explorer.scene import BLOCK_TOKENS
from tests.unit.kv_connector.scheduler_fakes import SECRET, FakeBlock, FakePool, step_output

GARBAGE, UNWRITTEN, EMPTY = "garbage", "unwritten", "empty"  # contents of a block, beside those of a leg


class Pool(FakePool):
    """vLLM's block pool, and what is in the blocks."""

    def __init__(self, blocks: int) -> None:
        super().__init__(blocks + 1)
        self.content = [GARBAGE] * (blocks + 1)
        self.cached = [""] * (blocks + 1)  # the content that vLLM finds there
        self.writer = [""] * (blocks + 1)  # the transfer whose source may write there

    @property
    def free_block_queue(self) -> "Pool":
        return self

    def get_all_free_blocks(self) -> list[FakeBlock]:
        return [block for block in self.blocks[1:] if block.ref_cnt == 0]

    def find(self, content: str) -> FakeBlock | None:
        return self.blocks[self.cached.index(content)] if content in self.cached else None

    def take(self, count: int) -> list[FakeBlock]:
        """Give out free blocks, those that are cached last."""
        free = sorted(self.get_all_free_blocks(), key=lambda block: (self.cached[block.block_id] != "", block.block_id))
        for block in free[:count]:
            self.evict(block.block_id)
        self.touch(free[:count])
        return free[:count]

    def evict(self, block: int) -> None:
        self.cached[block], self.content[block] = "", GARBAGE

    def free_blocks(self, blocks: Any) -> None:
        super().free_blocks(blocks)
        for block in self.get_all_free_blocks():
            self.writer[block.block_id] = ""

    def reuse(self) -> None:
        """Other requests have had all that is free and not cached, in the step that has just been issued."""
        for block in self.get_all_free_blocks():
            if not self.cached[block.block_id]:
                self.content[block.block_id] = GARBAGE


class Request:
    """vLLM's, as far as the connector reads it."""

    skip_reading_prefix_cache, prompt_embeds, mm_features = False, None, ()
    lora_request, cache_salt, structured_output_request = None, None, None
    sampling_params = SimpleNamespace(prompt_logprobs=None, num_logprobs=None, extra_args=None)
    max_tokens = 20
    block_hashes = ()  # of its whole blocks; a source looks for the third from the end

    def __init__(self, leg: Leg, peer: str) -> None:
        self.leg = leg
        self.request_id = leg.request_id
        # waiting, remote (waits for its KV), ready (has it), running, computed (a prompt), held (it has ended), gone (likewise, as it waited for KV)
        self.stage = "waiting"
        self.prompt_token_ids, self._all_token_ids = list(leg.prompt), list(leg.prompt)
        self.num_prompt_tokens = len(leg.prompt)
        receives = leg.role == "decode"
        params = TransferParams(
            transfer_id=leg.transfer,
            role=leg.role,
            peer=peer if receives else "",
            start=(leg.start,) if leg.start else (),
            start_sent=receives and leg.start != (),
        )
        self.kv_transfer_params: dict[str, Any] | None = sign(params, SECRET)

    @property
    def num_tokens(self) -> int:
        return len(self._all_token_ids)

    def update_block_hashes(self) -> None:
        pass

    def arrived(self) -> None:
        """The connector has been asked. What it has the request start with is output at once."""
        self.kv_transfer_params = None
        if start := vars(self).pop("baton_start_at_once", None):
            self._all_token_ids += [token.id for token in start.tokens]


class Scheduler:
    """vLLM's, over its block pool."""

    sides: SchedulerSides
    workers: WorkerSides

    def __init__(self, blocks: int) -> None:
        self.pool = Pool(blocks)
        self.tables: dict[str, list[FakeBlock]] = {}  # request → its blocks, in order
        self.requests: dict[str, Request] = {}  # those that have not ended, as they have arrived
        self.over: set[str] = set()
        self.trouble = ""

    def _take_results(self) -> None:
        """Take in what has come of the step before."""
        for request in [each for each in self.requests.values() if each.stage == "computed"]:
            self._finish(request, aborted=False)
        results, report = self.workers.take_results(), self.workers.take_report()
        self.sides.update(results.finished_sending, report or DecodeReport(), results.finished_recving)
        ended = results.finished_recving | results.finished_sending
        assert ended <= self.requests.keys(), "vLLM hears of a request that it does not have"
        for name in results.finished_recving:
            request = self.requests[name]
            if request.stage == "gone":
                self._free(request)
            elif name in results.failed_recving:
                self.pool.free_blocks(self.tables.pop(name))
                request.stage = "waiting"
            else:
                self._receive(request)
        for name in results.finished_sending:
            self._free(self.requests[name])

    def _receive(self, request: Request) -> None:
        """The KV is reported received: vLLM uses it, and caches it."""
        blocks = [block.block_id for block in self.tables[request.request_id]]
        self._check(request.leg, blocks)
        self._cache(request.leg, blocks)
        for block in blocks:
            self.pool.writer[block] = ""
        request.stage = "ready"

    def _finish(self, request: Request, *, aborted: bool) -> None:
        vllm_request: Any = request
        if self.sides.finish_request(vllm_request, aborted=aborted):
            request.stage = "held"
        elif request.stage == "remote":
            request.stage = "gone"
        else:
            self._free(request)

    def _free(self, request: Request) -> None:
        self.pool.free_blocks(self.tables.pop(request.request_id, ()))
        del self.requests[request.request_id]
        self.over.add(request.request_id)

    def _schedule(self, preempted: str) -> Any:
        """Schedule as vLLM does; nothing that waits beside a preemption."""
        if preempted:
            request = self.requests[preempted]
            self.pool.free_blocks(self.tables.pop(preempted))
            request.stage = "waiting"
        going_on = [
            (name, None, each.num_tokens - 1, 1) for name, each in self.requests.items() if each.stage == "running"
        ]
        new: list[tuple[str, Any, int, int]] = []
        for name, request in self.requests.items() if not preempted else ():
            if request.stage == "ready":
                request.stage = "running"
                new.append((name, self._block_ids(name), request.num_tokens - 1, 1))
            elif request.stage == "waiting":
                computed, has_room = self._place(request)
                if not has_room:
                    break
                if computed is not None:
                    new.append((name, self._block_ids(name), computed, request.num_tokens - computed))
        return step_output(new, going_on, {preempted} - {""})

    def _place(self, request: Any) -> tuple[int | None, bool]:
        """Give a request that waits its blocks, if it may have them. Returns how many tokens are cached, if it is scheduled; and whether there was room."""
        cached = [
            block
            for content in request.leg.contents[: (request.num_tokens - 1) // BLOCK_TOKENS]
            if (block := self.pool.find(content))
        ]
        tokens = len(cached) * BLOCK_TOKENS
        external, _ = self.sides.match(request, tokens)
        if external is None:
            return None, True
        missing = -(-(tokens + external if external else request.num_tokens) // BLOCK_TOKENS) - len(cached)
        self.pool.touch(cached)
        if missing > self.pool.get_num_free_blocks():
            self.pool.free_blocks(cached)
            return None, False
        own = self.pool.take(missing)
        blocks = self.tables[request.request_id] = cached + own
        self.sides.allocated(request, [blocks], external)
        for block in own:
            self.pool.writer[block.block_id] = request.leg.transfer if external else ""
            self.pool.content[block.block_id] = GARBAGE if external else UNWRITTEN
        if external:
            request.stage = "remote"
            return None, True
        request.stage = "computed" if request.leg.role == "prefill" else "running"
        self._cache(request.leg, self._block_ids(request.request_id))
        return tokens, True

    def _block_ids(self, name: str) -> list[int]:
        return [block.block_id for block in self.tables.get(name, ())]

    def _cache(self, leg: Leg, blocks: list[int]) -> None:
        """Cache the blocks that a request fills; vLLM may have the same tokens in several."""
        full = (len(leg.prompt) + max(0, len(leg.start) - 1)) // BLOCK_TOKENS
        for block, content in list(zip(blocks, leg.contents, strict=False))[:full]:
            self.pool.cached[block] = content

    def _check(self, leg: Leg, blocks: Iterable[int]) -> None:
        """A request computes on these blocks."""
        found = {(self.pool.content[block], content) for block, content in zip(blocks, leg.contents, strict=False)}
        wrong = {there for there, wanted in found if there != wanted}
        if UNWRITTEN in wrong:
            self.trouble = "I1: a request computes on a block that was pushed before it had been written"
        elif EMPTY in wrong:
            self.trouble = "I4: a request computes on a block that has not arrived"
        elif wrong:
            self.trouble = "I2: a request computes on what is not its prompt's KV"
