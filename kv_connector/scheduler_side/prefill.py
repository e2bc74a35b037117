"""The prefill node's scheduler side: which blocks hold which prompt, and when they are ready.

A prompt is *queued* until it is first scheduled, *running* until its last chunk is, then *complete*; it is *void* once
its blocks were taken away (abort, preemption). Only a complete prompt's blocks are held after the request has ended.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any

from baton.contracts.kv_transfer import SINGLE, Grid, Grids, TransferParams
from baton.contracts.secret import ClusterSecret
from baton.kv_connector.handoff.metadata import Abandoned, PrefillStep, StartedPrompt
from baton.kv_connector.handoff.outgoing import Progress, Prompt
from baton.kv_connector.layout.groups import ONE_GROUP, Group, have_states
from baton.kv_connector.scheduler_side.answer_tokens import ModelLimits, has_kv, lengthen, sent_tokens
from baton.kv_connector.scheduler_side.answer_tokens import objection as cannot_follow
from baton.kv_connector.scheduler_side.block_pins import BlockTables
from baton.kv_connector.scheduler_side.cached_token_usage import bill_prompt_alone
from baton.kv_connector.scheduler_side.first_output import end_after_first_token
from baton.kv_connector.scheduler_side.first_token import wanted_logprobs
from baton.kv_connector.scheduler_side.prompt import ADAPTER_CHANGED, adapter_name, prompt_hash
from baton.kv_connector.scheduler_side.start_tokens import abort_at_once
from baton.kv_connector.scheduler_side.tracking import choice_of, is_named, params_of, scheduled_in, wrong_grid
from baton.kv_connector.telemetry.refusals import Refusals, Refused
from baton.kv_connector.vllm_compat.lora import Adapters
from baton.kv_connector.vllm_compat.media import NO_MEDIA, Media

if TYPE_CHECKING:
    from vllm.v1.core.block_pool import BlockPool
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.request import Request

logger = logging.getLogger(__name__)

KV_LOST = "the KV of the answer is no longer in the prefix cache"


class _State(IntEnum):
    QUEUED = 0
    RUNNING = 1
    COMPLETE = 2
    VOID = 3


@dataclass(slots=True)
class _Tracked:
    request: "Request"
    transfer_id: str
    group: str  # id of all transfers of one HTTP request; empty: there is one
    tokens: int
    blocks: int  # of the whole prompt
    prompt_hash: bytes
    adapter: str  # its name when the prompt was hashed
    grids: Grids
    taken: tuple[int, ...]  # tokens off its end: D computes them
    logprobs: int | None  # of the first token, which D starts with; None: D samples it
    answer_tokens: int  # at its end, which have been put behind the client's prompt
    state: _State = _State.QUEUED
    is_given_up: bool = False  # unless a decode rank has reserved


class PrefillScheduler:
    """Everything that P's scheduler process knows about transfers."""

    def __init__(
        self,
        secret: ClusterSecret,
        block_tokens: int,
        grid: Grid = SINGLE.prefill,
        *,
        groups: Sequence[Group] = ONE_GROUP,
        adapters: Adapters | None = None,
        media: Media = NO_MEDIA,
        sampling: str = "",
        answers: ModelLimits | None = None,
    ) -> None:
        """`sampling`: digest of how the engine samples, if its scheduler is ours; empty: no other node may take its tokens.

        `answers`: of an engine that also sends the KV of answers; None: it sends that of prompts alone.
        """
        self._grid = grid
        self._secret = secret
        self._block_tokens = block_tokens
        self._adapters = adapters or Adapters()
        self._media = media
        self._refusals = Refusals(logger)
        self._requests: dict[str, _Tracked] = {}
        self._held: dict[str, _Tracked] = {}
        self._prompts: dict[str, bytes] = {}  # transfer id → prompt hash, of both
        self._step = PrefillStep()
        self._pool: BlockPool | None = None
        self._tables = BlockTables(groups, block_tokens)
        self._num_groups = len(groups)
        self._has_states = have_states(groups)
        self._has_our_scheduler = bool(sampling)
        self._sampling = "" if self._has_states else sampling
        self._answers = answers
        self.reservations = self._tables.pins.reservations
        self._totals = {"transfers": 0, "completed": 0, "voided": 0}

    def bind_pool(self, pool: "BlockPool") -> None:
        self._pool = pool
        self._tables.pins.bind(pool)

    def add_request(self, request: "Request") -> None:
        params = params_of(request, "prefill", self._secret, self._refusals)
        if params is None:
            return
        if params.relays:
            self._relay(request)
        if not is_named(request):
            return
        answer = sent_tokens(request, params)
        adapter = adapter_name(request, self._adapters)
        prompt = prompt_hash(request, self._adapters, self._media, answer)
        transfer_id = params.transfer_of(prompt_hash(request), choice_of(request))
        if known := self._prompts.get(transfer_id):
            if known != prompt:  # else the prompt stands twice in a batch, and one transfer is enough
                self._refusals.count(Refused.REUSED_ID, transfer_id)
            return
        reason = self._unfit(request, params, answer)
        if not reason and answer and not self._lengthen(request, answer):
            reason = KV_LOST
        if reason:
            self._step.abandoned.append(Abandoned(transfer_id, reason, params.grids))
            return
        self._prompts[transfer_id] = prompt
        tokens = request.num_prompt_tokens
        blocks = -(-tokens // self._block_tokens)
        group = params.transfer_id if transfer_id != params.transfer_id else ""
        taken = shorten(request) if self._has_states else ()
        logprobs = wanted_logprobs(request) if params.first_token and self._sampling else None
        tracked = _Tracked(
            request, transfer_id, group, tokens, blocks, prompt, adapter, params.grids, taken, logprobs, len(answer)
        )
        self._requests[request.request_id] = tracked
        self._totals["transfers"] += 1

    def _unfit(self, request: "Request", params: TransferParams, answer: Sequence[int]) -> str:
        if params.grids.prefill != self._grid:
            return wrong_grid(params.grids.prefill, self._grid)
        no_media = self._media.objection_to(request.mm_features)
        unfit = cannot_follow(request, answer, self._answers) if answer else ""
        return no_media or unfit or (cannot_shorten(request) if self._has_states else "")

    def _lengthen(self, request: "Request", answer: Sequence[int]) -> bool:
        """Put an answer behind its prompt; return whether the KV is there. Where it is not, our scheduler computes nothing of it."""
        lengthen(request, answer)
        assert self._pool is not None  # bound before the engine takes requests
        is_there = self._num_groups > 1 or has_kv(request, self._pool)
        if not is_there and self._has_our_scheduler:
            abort_at_once(request)
        return is_there

    def take_step(self, output: "SchedulerOutput") -> PrefillStep:
        for request_id in output.preempted_req_ids or ():
            self._void(request_id, "preempted")
        if self._requests:
            self._take_in(output)
        step, self._step = self._step, PrefillStep()
        return step

    def finish_request(self, request: "Request", *, aborted: bool) -> bool:
        tracked = self._requests.get(request.request_id)
        keeps_blocks = tracked is not None and tracked.state is _State.COMPLETE and not aborted
        if tracked is None:
            return False
        if keeps_blocks:
            self._held[request.request_id] = self._requests.pop(request.request_id)
            self._step.holds.append(request.request_id)
            self._totals["completed"] += 1
            return True
        if tracked.state is _State.QUEUED:
            reason = "aborted before it was scheduled"
            self._step.abandoned.append(Abandoned(tracked.transfer_id, reason, tracked.grids))
        self._void(request.request_id, "aborted")
        del self._requests[request.request_id]
        self._prompts.pop(tracked.transfer_id, None)
        return False

    def make_room(self, blocks: int) -> None:
        """Give up finished prompts that no decode rank has reserved for, the newest first, until so many blocks will be free, as far as we know (I5).

        For a node that receives too: what it is to receive may be held by one that lacks room for what is held here.
        """
        for request_id, tracked in reversed(self._held.items()):
            if blocks > 0 and not tracked.is_given_up:
                self._step.unfetched.append(request_id)
                tracked.is_given_up = True
                blocks -= tracked.blocks

    def update(self, finished_sending: set[str]) -> None:
        """The workers let go of these requests' blocks."""
        for request_id in finished_sending:
            self._tables.forget(request_id)
            if tracked := self._held.pop(request_id, None):
                self._prompts.pop(tracked.transfer_id, None)

    def snapshot(self) -> dict[str, Any]:
        """State for the node API; called from another thread."""
        held = [(request_id, tracked, "held") for request_id, tracked in list(self._held.items())]
        live = [
            (request_id, tracked, tracked.state.name.lower()) for request_id, tracked in list(self._requests.items())
        ]
        return {
            "block_size": self._block_tokens,
            "first_tokens": self._sampling,
            "transfers": [
                {
                    "request_id": request_id,
                    "transfer_id": tracked.transfer_id,
                    "role": "prefill",
                    "state": state,
                    "blocks_held": tracked.blocks if state == "held" else 0,
                }
                for request_id, tracked, state in held + live
            ],
            "totals": dict(self._totals),
            "refused": self._refusals.snapshot(),
        }

    def _relay(self, request: "Request") -> None:
        """Whatever becomes of its transfer: another node goes on after the first token."""
        if self._sampling:
            end_after_first_token(request)
        else:
            self._refusals.count(Refused.RELAY, "this engine has no scheduler for it")

    def _take_in(self, output: "SchedulerOutput") -> None:
        """Note what the step does for prompts. Not called in most steps of a node that decodes: there may be hundreds of requests."""
        for new in output.scheduled_new_reqs:
            self._begin(new.req_id, new.num_computed_tokens)
        for request_id, blocks, computed in scheduled_in(output):
            self._advance(request_id, blocks, computed)

    def _begin(self, request_id: str, cached_tokens: int) -> None:
        tracked = self._requests.get(request_id)
        if tracked is None or tracked.state is not _State.QUEUED:
            return
        if adapter_name(tracked.request, self._adapters) != tracked.adapter:
            self._step.abandoned.append(Abandoned(tracked.transfer_id, ADAPTER_CHANGED, tracked.grids))
            tracked.state = _State.VOID
        else:
            if tracked.answer_tokens:
                bill_prompt_alone(tracked.request, tracked.tokens - tracked.answer_tokens)
            prompt = Prompt(
                tracked.tokens,
                tracked.blocks,
                tracked.prompt_hash,
                cached_tokens,
                is_answer=tracked.answer_tokens > 0,
            )
            started = StartedPrompt(
                tracked.transfer_id, request_id, prompt, tracked.group, tracked.grids, tracked.logprobs
            )
            self._step.started.append(started)
            tracked.state = _State.RUNNING

    def _advance(self, request_id: str, new_blocks: Sequence[Sequence[int]], computed_tokens: int) -> None:
        tracked = self._requests.get(request_id)
        if tracked is None or tracked.state in (_State.VOID, _State.COMPLETE):
            return
        ready = computed_tokens // self._block_tokens  # a block that is being filled is not pushed
        if computed_tokens >= tracked.tokens - len(tracked.taken):
            ready, tracked.state = tracked.blocks, _State.COMPLETE
        placed = self._tables.place(request_id, tracked.tokens, new_blocks)
        self._step.progress.append(Progress(request_id, placed, ready))
        if not self._tables.extend(request_id, tracked.tokens, placed):
            self._void(request_id, "vLLM has let go of blocks that are still read")
        elif tracked.state is _State.COMPLETE:
            self._tables.pin(request_id, tracked.tokens)

    def _void(self, request_id: str, reason: str) -> None:
        tracked = self._requests.get(request_id)
        if tracked is not None and tracked.state in (_State.RUNNING, _State.COMPLETE):
            self._step.voids.append((request_id, reason))
            self._totals["voided"] += 1
            tracked.state = _State.VOID
            self._tables.forget(request_id)


def cannot_shorten(request: "Request") -> str:
    """Return why a prompt cannot do without its last token on P; "" if it can, or has no other.

    Beside recurrent layers D computes it itself, from the state that the token before has left: P could not go back to
    it. The node's HTTP side has its own copy of the prompt, and P's one output token is thrown away.
    """
    sampling = request.sampling_params
    if sampling is not None and sampling.prompt_logprobs is not None:
        return "prompt logprobs need the whole prompt, and a recurrent layer's state is that of all tokens but the last"
    last = request.num_prompt_tokens - 1
    if any(feature.mm_position.offset + feature.mm_position.length > last for feature in request.mm_features):
        return "the prompt ends within an image, a sound or a file, of which the prefill node cannot leave a token out"
    return ""


def shorten(request: "Request") -> tuple[int, ...]:
    """Take the last token off a prompt that has not been scheduled; return what was taken: nothing of a single token.

    Source:
        `MooncakeConnector._truncate_mamba_request_for_prefill` of vLLM. That one changes the list that it is given,
        which an engine within the server's process shares with the server.
    """
    tokens = request.prompt_token_ids
    if tokens is None or len(tokens) < 2:
        return ()
    request.prompt_token_ids = tokens[:-1]
    request._all_token_ids.pop()
    request.num_prompt_tokens -= 1
    request.max_tokens = 1  # another token would be computed over the state
    return (tokens[-1],)
