"""The decode node's scheduler side: when to reserve blocks, when they return, what to do when the KV does not come.

A request is *waiting* until blocks are allocated for it, *reserved* while a peer may write to them, and *settled* once
its KV is here, has failed, or is not needed. From then on it is vLLM's alone: every later call answers `(0, False)`.
Blocks return (`update`) once the worker side has closed the transfer (`Consumer._close`).

Longer than other files: every call of vLLM's is one event of the same requests.
"""

import logging
import time
from collections.abc import Sequence
from itertools import count
from typing import TYPE_CHECKING, Any

from baton.contracts.kv_transfer import SINGLE, Grid, TransferParams
from baton.contracts.secret import ClusterSecret
from baton.kv_connector.config import ConnectorConfig
from baton.kv_connector.control.status_server import OutcomeSender
from baton.kv_connector.control.wake import IdleSleep, wake_path
from baton.kv_connector.handoff.incoming import BlockReservation
from baton.kv_connector.handoff.metadata import DecodeReport, DecodeStep, Reserved, Watched
from baton.kv_connector.layout.groups import (
    ONE_GROUP,
    Group,
    ends_with_blocks,
    have_states,
    have_windows,
    hits_may_diverge,
    least_tokens,
)
from baton.kv_connector.scheduler_side.answer_tokens import sent_tokens
from baton.kv_connector.scheduler_side.cached_token_usage import bill
from baton.kv_connector.scheduler_side.client_tokens import ClientTokens
from baton.kv_connector.scheduler_side.first_token import may_start
from baton.kv_connector.scheduler_side.history import BlockHistory
from baton.kv_connector.scheduler_side.ledger import ReservationLedger, by_place
from baton.kv_connector.scheduler_side.prompt import ADAPTER_CHANGED, adapter_name, prompt_hash
from baton.kv_connector.scheduler_side.shared_prompts import SharedPrompts
from baton.kv_connector.scheduler_side.stalls import Stalls
from baton.kv_connector.scheduler_side.start_tokens import abort_without_kv, start_with
from baton.kv_connector.scheduler_side.timing import DecodeTimings
from baton.kv_connector.scheduler_side.tracked import State, Tracked
from baton.kv_connector.scheduler_side.tracking import (
    Failures,
    choice_of,
    is_named,
    params_of,
    scheduled_in,
    wrong_grid,
)
from baton.kv_connector.telemetry.refusals import Refusals, Refused
from baton.kv_connector.vllm_compat.lora import Adapters
from baton.kv_connector.vllm_compat.media import NO_MEDIA, Media
from baton.kv_connector.vllm_compat.versions import restart

if TYPE_CHECKING:
    from vllm.v1.core.block_pool import BlockPool
    from vllm.v1.core.kv_cache_utils import KVCacheBlock
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.request import Request

logger = logging.getLogger(__name__)

STALLED_S = 2.0  # how long D computes nothing, for want of blocks, before early reservations are given back
UNALIGNED = "a prefix that this node has cached ends within a block of some KV cache group"
NOT_STARTED = "the prefill node had not started it when a request that came later could not be given blocks"


class DecodeScheduler:
    """Everything that D's scheduler process knows about transfers."""

    def __init__(
        self,
        config: ConnectorConfig,
        secret: ClusterSecret,
        block_tokens: int,
        grid: Grid = SINGLE.prefill,
        *,
        has_prefix_cache: bool = True,
        sampling: str = "",
        vocab_size: int = 0,
        groups: Sequence[Group] = ONE_GROUP,
        adapters: Adapters | None = None,
        media: Media = NO_MEDIA,
    ) -> None:
        """`sampling`: digest of how the engine samples, if its scheduler starts requests with given tokens; else empty."""
        self._config = config
        self._grid = grid
        self._secret = secret
        self._block_tokens = block_tokens
        self._groups = groups
        self.hits_may_diverge = hits_may_diverge(groups)
        self._sampling = "" if have_states(groups) else sampling
        self._vocab_size = vocab_size
        # Told of the whole prompt, vLLM would compute its last token without the first token in that one's window.
        self._own_tokens = 1 if have_windows(groups) else 0
        self._adapters = adapters or Adapters()
        self._media = media
        self._refusals = Refusals(logger)
        self._requests: dict[str, Tracked] = {}
        self._owners: dict[str, str] = {}  # transfer id → request id
        self._siblings = SharedPrompts(can_share=has_prefix_cache and not have_states(groups))  # states are not cached
        self._stalls, self.lacking = Stalls(STALLED_S), 0  # blocks, in a standstill that no reservation ends
        self._ledger = ReservationLedger(grid.ranks)
        self.reservations = self._ledger.reservations
        self.history = BlockHistory()
        self._step = DecodeStep()
        self._epochs = count(1)
        self._failures = Failures()
        self._timings = DecodeTimings()
        self._totals = {
            "transfers": 0,
            "loaded": 0,
            "cached": 0,
            "recomputed": 0,
            "cancelled": 0,
            "tokens_received": 0,
            "started": 0,  # with tokens that P has sampled, or that the client has
            "prompt_tokens_computed": 0,  # of all requests, as scheduled
        }
        self._client_tokens = ClientTokens(self._refusals, self._totals, vocab_size, can_start=bool(self._sampling))
        self._outcomes = OutcomeSender(config.outcomes_path)
        self._idle_sleep = IdleSleep(wake_path(config.engine_dir))

    def bind_pool(self, pool: "BlockPool") -> None:
        """Name the block pool: the engine's loop is about to begin."""
        self._ledger.bind(pool)
        self._idle_sleep.start()

    def add_request(self, request: "Request") -> None:
        """A request has arrived. Tell its prefill node that we care, so that it keeps the prompt for us."""
        params = params_of(request, "decode", self._secret, self._refusals)
        if params is None or (params.start and not self._client_tokens.start(request, params)):
            return  # an ordinary request; one that ends here
        if params.kv_only:
            abort_without_kv(request, is_lost=request.skip_reading_prefix_cache or not is_named(request))
        if not params.peer:
            self._outcomes.send(params.transfer_id, "local", "")
        if not params.peer or request.skip_reading_prefix_cache or not is_named(request):
            return  # it must compute its prompt itself
        adapter, answer = adapter_name(request, self._adapters), sent_tokens(request, params)
        prompt = prompt_hash(request, self._adapters, self._media, answer)
        transfer_id = params.transfer_of(prompt_hash(request), choice_of(request))
        peers = params.peer.split(",")
        if reason := self._unfit(params, len(peers)) or self._media.objection_to(request.mm_features):
            self._failures.add(params.transfer_id, reason)
            self._outcomes.send(params.transfer_id, "recomputed", reason)
            if params.kv_only:
                abort_without_kv(request, is_lost=True)
            return
        if owner := self._owners.get(transfer_id):
            if self._requests[owner].prompt_hash == prompt:
                self._siblings.join(request.request_id, owner)
            else:
                self._refusals.count(Refused.REUSED_ID, transfer_id)
            return
        first, now = params.first_token and not params.start and bool(self._sampling), time.monotonic()
        about = prompt, adapter, now, request.num_prompt_tokens + len(answer), first
        tracked = Tracked(request, transfer_id, params.transfer_id, params.peer, *about, kv_only=params.kv_only)
        self._requests[request.request_id] = tracked
        self._siblings.own(request.request_id, request.num_prompt_tokens, after=self._owners.get(params.transfer_id))
        self._owners[transfer_id] = request.request_id
        self._timings.arrived(request.request_id, transfer_id, params.peer, tracked.since)
        self._totals["transfers"] += 1
        self._step.watched.append(Watched(transfer_id, request.request_id, peers, params.grids))

    def match(self, request: "Request", num_computed_tokens: int) -> tuple[int | None, bool]:
        """How many tokens beyond the local prefix hit will come from P: `None` means ask again next step."""
        tokens, is_remote = self._match(request, num_computed_tokens)
        if tokens is not None:
            self._stalls.asked(request.request_id, self._blocks_for(request.num_tokens - num_computed_tokens))
        return tokens, is_remote

    def _match(self, request: "Request", num_computed_tokens: int) -> tuple[int | None, bool]:
        if self._siblings.must_wait(request.request_id):
            return None, False
        tracked = self._requests.get(request.request_id)
        if tracked is None or tracked.state is not State.WAITING:
            return 0, False
        missing = tracked.tokens - num_computed_tokens
        # vLLM computes the last prompt token itself, unless the request starts with the token that comes after it.
        if missing - self._own_tokens < least_tokens(self._groups) or (missing == 1 and not tracked.wants_first):
            return 0, False
        if self._may_reserve(tracked, missing):
            reason = "" if ends_with_blocks(self._groups, self._block_tokens, num_computed_tokens) else UNALIGNED
            if adapter_name(request, self._adapters) != tracked.adapter:
                reason = ADAPTER_CHANGED
            if reason:
                self._recompute(request.request_id, tracked, reason)
                return 0, False
            return missing - self._own_tokens, True
        return None, False  # bounded: the worker gives up after `transfer_timeout_s` and reports it

    def allocated(
        self, request: "Request", blocks: Sequence[Sequence["KVCacheBlock"]], num_external_tokens: int
    ) -> None:
        """Blocks have been allocated: `blocks` (all of the request's, by KV cache group, in prompt order)."""
        self._stalls.placed(request.request_id)
        tracked = self._requests.get(request.request_id)
        if tracked is None or tracked.state is not State.WAITING:
            return
        if num_external_tokens == 0:
            self._totals["cached"] += 1
            self._timings.forget(request.request_id)
            self._settle(request.request_id, tracked)  # vLLM may force this whatever `match` said
            return
        prompt_tokens = tracked.tokens
        from_token = prompt_tokens - self._own_tokens - num_external_tokens
        first, stop = from_token // self._block_tokens, -(-prompt_tokens // self._block_tokens)
        null = self._ledger.pool.null_block
        tables = [  # by place; a single block stands for the last token received
            group.spread(table, 0, prompt_tokens, self._block_tokens, null)
            for group, table in zip(self._groups, blocks, strict=True)
        ]
        reserved = [[block for block in table[first:stop] if not block.is_null] for table in tables]
        wanted = [by_place(table[first:stop], stop - first) for table in tables]
        self._ledger.take(request.request_id, [block for group in reserved for block in group])
        wish = BlockReservation(prompt_tokens, from_token, wanted, tracked.prompt_hash)
        for group in wanted:
            self.history.note("reserved for the peer of", request.request_id, filter(None, group))
        self._step.reserved.append(Reserved(request.request_id, next(self._epochs), wish))
        self._timings.reserved(request.request_id, time.monotonic())
        tracked.external_tokens = num_external_tokens
        tracked.state = State.RESERVED

    def finish_request(self, request: "Request") -> None:
        self._siblings.end(request.request_id)
        tracked = self._requests.pop(request.request_id, None)
        if tracked is None:
            return
        del self._owners[tracked.transfer_id]
        self._timings.close(request.request_id, "cancelled")
        if tracked.state is not State.SETTLED:
            self._totals["cancelled"] += 1
            self._step.cancelled.append(request.request_id)

    def take_step(self, output: "SchedulerOutput") -> DecodeStep:
        for new in output.scheduled_new_reqs:
            # The V2 runner also has here what goes on after a preemption, perhaps with more than its prompt cached.
            self._totals["prompt_tokens_computed"] += max(0, len(new.prompt_token_ids or ()) - new.num_computed_tokens)
        for request_id, _, computed in scheduled_in(output):
            self._siblings.scheduled(request_id, computed)
        now = time.monotonic()
        self._timings.stepped([new.req_id for new in output.scheduled_new_reqs], now)
        needed = self._stalls.step_ends(computes=bool(output.num_scheduled_tokens), now=now)
        self.lacking = self._make_room(needed) if needed else 0
        step, self._step = self._step, DecodeStep()
        return step

    def update(self, report: DecodeReport, finished_receiving: set[str]) -> None:
        if report or finished_receiving:
            self._idle_sleep.skip_next()
        for tracked in self._requests.values() if report.started else ():
            tracked.started = tracked.started or tracked.transfer_id in report.started
        self._note_endings(report)
        for request_id, reason in report.failed.items():
            if failed := self._requests.get(request_id):
                self._fail_receive(request_id, failed, reason)
        for request_id in finished_receiving:
            if waiting := self._requests.get(request_id):
                self._end_receive(request_id, waiting)
        for request_id in report.closed:
            returned = self._ledger.release(request_id)  # to vLLM's pool: no peer can write to these blocks any more
            self.history.note("let go by the peers of", request_id, returned)

    def has_open_reservations(self) -> bool:
        """Whether a peer may still write to some block.

        The engine must keep stepping then, even with no request left: a step gives the blocks back, at the latest after `quarantine_max_s`.
        """
        return len(self._ledger) > 0

    def snapshot(self) -> dict[str, Any]:
        """State for the node API; called from another thread."""
        now = time.monotonic()
        return {
            "block_size": self._block_tokens,
            "first_tokens": self._sampling,
            "transfers": [
                {
                    "request_id": request_id,
                    "transfer_id": tracked.transfer_id,
                    "role": "decode",
                    "state": tracked.state.name.lower(),
                    "age_s": round(now - tracked.since, 3),
                    "blocks_held": self._ledger.blocks_held(request_id),
                    "peer": tracked.peer,
                }
                for request_id, tracked in list(self._requests.items())
            ],
            "reservations": len(self._ledger),
            "reserved_blocks": self._ledger.total_blocks(),
            "totals": self._totals | {"shared": self._siblings.total},
            "recomputed_by_reason": self._failures.by_class(),
            "refused": self._refusals.snapshot(),
            "failures": self._failures.recent(),
        } | self._timings.snapshot()

    def close(self) -> None:
        self._outcomes.close()
        self._idle_sleep.stop()

    def _may_reserve(self, tracked: Tracked, missing: int) -> bool:
        """Reserve at once while enough of the pool stays free; else only for a prompt that has started (E8), and for no answer: vLLM admits nothing behind it."""
        pool, share = self._ledger.pool, self._config.transfer.early_reserve_share
        early = pool.get_num_free_blocks() - self._blocks_for(missing) >= share * pool.num_gpu_blocks
        return early or (tracked.started and not self._config.receives_answers)

    def _blocks_for(self, tokens: int) -> int:
        return sum(group.blocks_of(tokens, self._block_tokens) for group in self._groups)

    def _make_room(self, needed: int) -> int:
        """Give back early reservations, the newest first, until so many blocks will be free; D computes those prompts.

        Returns what is lacking still.
        """
        short: int = needed - self._ledger.pool.get_num_free_blocks()
        coming = sum(
            self._ledger.blocks_held(request_id)
            for request_id, tracked in self._requests.items()
            if tracked.state is State.SETTLED  # given back already; its peer has not answered yet
        )
        short = short - coming if coming else max(1, short)  # vLLM may want more than we know of
        for request_id, tracked in reversed(self._requests.items()):
            if short > 0 and tracked.state is State.RESERVED and not tracked.started:
                short -= self._ledger.blocks_held(request_id)
                self._recompute(request_id, tracked, NOT_STARTED)
        return max(0, short)

    def _unfit(self, params: TransferParams, peers: int) -> str:
        if params.grids.decode != self._grid:
            return wrong_grid(params.grids.decode, self._grid)
        fits = peers == params.grids.prefill.ranks
        return "" if fits else f"the proxy names {params.peer} for a prefill node of {params.grids.prefill.ranks} ranks"

    def _settle(self, request_id: str, tracked: Tracked) -> None:
        tracked.state = State.SETTLED
        self._step.cancelled.append(request_id)

    def _note_endings(self, report: DecodeReport) -> None:
        self._timings.ended(report.endings)
        for request_id, ending in report.endings.items():
            if ended := self._requests.get(request_id):
                ended.cached_tokens = ending.cached_tokens
                ended.first = report.first_tokens.get(request_id, ended.first)

    def _end_receive(self, request_id: str, tracked: Tracked) -> None:
        if tracked.receive_failed:  # one that was given back while its KV had just arrived has not failed
            restart(tracked.request)
        elif tracked.state is State.RESERVED:
            tracked.state = State.SETTLED
            bill(tracked.request, tracked.cached_tokens)
            if tracked.wants_first and tracked.first and may_start(tracked.request, tracked.first, self._vocab_size):
                start_with(tracked.request, [tracked.first], self._totals)
            self._timings.loaded(request_id)
            self._totals["loaded"] += 1
            self._totals["tokens_received"] += tracked.external_tokens

    def _fail_receive(self, request_id: str, tracked: Tracked, reason: str) -> None:
        tracked.receive_failed = True
        if tracked.state is not State.SETTLED:
            self._recompute(request_id, tracked, reason)

    def _recompute(self, request_id: str, tracked: Tracked, reason: str) -> None:
        self._settle(request_id, tracked)  # so that ranks that have not failed wait no longer
        self._timings.close(request_id, "recomputed", reason)
        self._totals["recomputed"] += 1
        self._failures.add(tracked.transfer_id, reason)
        self._outcomes.send(tracked.named, "recomputed", reason)
        if tracked.kv_only:
            abort_without_kv(tracked.request, is_lost=True)
