"""One attempt at a request: the legs of one plan, from their start until both are settled.

An attempt that the client does not see to its end (it left, the deadline passed, another plan follows) closes every
connection at once: that is how a vLLM server learns to stop. It may have learned too late, or never have read the
request; so the prefill node is told as well (`cancel_notifier.py`), unless the decode node has answered with the
prompt's KV.

Longer than other files, since it has both the legs' making and their end.
"""

import asyncio
import time
from collections.abc import Callable
from functools import partial
from time import perf_counter
from typing import Final

from msgspec.structs import replace

from baton.contracts.configuration.schema import BatonConfig
from baton.contracts.http import TOKEN_IDS_HEADER
from baton.contracts.kv_transfer import Grids, TransferParams, new_transfer_id, sign
from baton.contracts.secret import ClusterSecret
from baton.proxy.errors import FailureKind, StreamBrokenError
from baton.proxy.handler.cancel_notifier import CancelNotifier
from baton.proxy.handler.legs import LegRequest, WhileHopeful, first_to_count, nothing, open_decode, run_prefill
from baton.proxy.handler.stream_watch import StreamWatch
from baton.proxy.http.headers import line
from baton.proxy.http.upstream import PendingRequest, Upstream
from baton.proxy.nodes.cached_cost import PromptParts
from baton.proxy.nodes.node import Node
from baton.proxy.nodes.registry import NodeRegistry
from baton.proxy.planning.outcome import DecodeFailed, DecodeOutcome, Opened, PrefillDone, PrefillFailed, PrefillOutcome
from baton.proxy.planning.placement import Estimate, estimate
from baton.proxy.planning.plans import DisaggregatedPlan, LocalPlan, Plan
from baton.proxy.planning.reasons import ON_PREFILL
from baton.proxy.planning.retry_policy import NOTHING_YET, History
from baton.proxy.request.eligibility import fetches_items, has_several_prompts
from baton.proxy.request.endpoints import RESPONSES
from baton.proxy.request.fields import is_on
from baton.proxy.request.leg_bodies import decode_body, prefill_body, relayed_body
from baton.proxy.request.parse import ClientRequest
from baton.proxy.response.first_token_relay import FirstTokenRelay
from baton.proxy.resume.events import has_data
from baton.proxy.resume.kept_tokens import KeptTokens
from baton.proxy.telemetry.metrics import Metrics
from baton.proxy.tracing.traces import Leg

CUT: Final = "cut"  # the problem of a leg that its request did not need any more, in its span
# How long a prefill leg may outlive its request, so that a good answer on its way is not turned into an abort.
PREFILL_GRACE_S: Final = 1.0

Outcome = DecodeOutcome | PrefillOutcome


class AttemptRunner:
    """Sends the legs of plans to nodes."""

    def __init__(
        self,
        config: BatonConfig,
        secret: ClusterSecret,
        *,
        upstream: Upstream,
        members: NodeRegistry,
        metrics: Metrics,
        cancels: CancelNotifier,
        watch: StreamWatch,
    ) -> None:
        self._prefill_timeout_s = config.transfer.transfer_timeout_s
        self._move_timeout_s = config.proxy.stall_timeout_s  # for a prefill leg that has next to nothing to compute
        self._secret = secret
        self.upstream = upstream
        self.members = members
        self._metrics = metrics
        self.cancels = cancels
        self.watch = watch
        self._outliving: set[asyncio.Task[PrefillOutcome]] = set()

    async def stop(self) -> None:
        """End the prefill legs that outlived their requests."""
        for task in self._outliving:
            task.cancel()
        await asyncio.gather(*self._outliving, return_exceptions=True)

    def run(
        self, plan: Plan, request: ClientRequest, relay: FirstTokenRelay | None, history: History = NOTHING_YET
    ) -> "Attempt":
        """Return what runs a plan: entered, it gives the outcome that counts; an opened answer stays open for the block.

        Without `relay` the answer is thrown away: the decode node gets the KV, into its prefix cache, and that is all.
        """
        return Attempt(self, plan, request, relay, history)

    async def decode(
        self, call: LegRequest, kept: KeptTokens | None = None, on_tokens: Callable[[], None] = nothing
    ) -> DecodeOutcome:
        """Run a decode leg until it could be relayed; `kept` gets the tokens of an answer that is not streamed, `on_tokens` is called at the first of them."""
        sent = self.upstream.send(*call.request)
        outcome = await open_decode(sent, kept, on_tokens)
        if isinstance(outcome, DecodeFailed):
            self._end_failed(call, "decode", outcome.kind)
            return outcome
        self.members.succeeded(call.node)
        if not isinstance(outcome, Opened):
            call.leg.end("refused")
        elif outcome.answer.is_stream:
            call.leg.event("first bytes")
            answered_s = perf_counter() - sent.at_s
            call.node.times.first_bytes.observe(answered_s)
            if has_data(outcome.first):
                _learn(call, answered_s)
        return outcome

    async def prefill(
        self, call: LegRequest, sent: PendingRequest, relay: FirstTokenRelay | None, *, moves: bool = False
    ) -> PrefillOutcome:
        """Run a prefill leg; `moves`: on the decode node that an answer leaves, which is to send its KV."""
        try:
            timeout_s = self._move_timeout_s if moves else self._prefill_timeout_s
            outcome = await run_prefill(sent, timeout_s=timeout_s, relay=relay)
        except BaseException:
            call.leg.end(CUT)
            raise
        if moves and isinstance(outcome, PrefillFailed) and outcome.kind is FailureKind.TIMEOUT:
            outcome = PrefillFailed(FailureKind.BUSY, "it has no place for it, or its prefix cache has lost the KV")
        if not isinstance(outcome, PrefillDone):
            self._end_failed(call, "prefill", outcome.kind)
            return outcome
        self.members.succeeded(call.node)
        call.leg.end()
        call.node.times.answered.observe(outcome.answered_s - sent.at_s)
        if relay is None:
            _learn(call, outcome.answered_s - sent.at_s)
        return outcome

    def report_failure(self, role: str, node: Node, kind: FailureKind) -> None:
        self._metrics.leg_failed(role, kind)
        self.members.report(node, kind)

    def _end_failed(self, call: LegRequest, role: str, kind: FailureKind) -> None:
        call.leg.end(kind)
        if call.is_optional and kind not in (FailureKind.CONNECT, FailureKind.DISCONNECT):
            return  # the caller counts it; it says nothing of what the node does for clients
        is_unfetched = kind is FailureKind.STATUS and fetches_items(call.asked.fields)
        self.report_failure(role, call.node, FailureKind.UNFETCHED if is_unfetched else kind)

    def outlive(self, prefill: asyncio.Task[PrefillOutcome]) -> None:
        """Let a prefill leg end by itself, for a moment."""
        self._outliving.add(prefill)
        prefill.add_done_callback(self._outliving.discard)
        asyncio.get_running_loop().call_later(PREFILL_GRACE_S, prefill.cancel)

    def decode_call(
        self, plan: DisaggregatedPlan, request: ClientRequest, prefill: TransferParams, *, is_ahead: bool = False
    ) -> LegRequest:
        """Return the decode leg of a pair; `prefill`: what the prefill node is told.

        `is_ahead`: only the KV is wanted, and a token shows that it is there.
        """
        start = request.start if plan.moves or plan.decode.starts_with_tokens else ()
        address = plan.control_address
        params = replace(prefill, role="decode", peer=address, relays=False, start=start, start_sent=plan.moves)
        signed = sign(replace(params, kv_only=is_ahead), self._secret)
        if is_ahead:
            body = prefill_body(request, signed, first_token=False, tokens=len(request.start[0]) + 1)
            return replace(_call(plan.decode, request, body, id_suffix="-ahead"), is_optional=True)
        return _call(plan.decode, request, decode_body(request.fields, signed))

    def local_call(self, plan: LocalPlan, request: ClientRequest) -> LegRequest:
        """Return the one leg of a node that computes the prompt itself."""
        expected = _expect(plan.decode, plan.work_bytes, plan.cached_bytes, request)
        if not request.start or not plan.decode.starts_with_tokens:
            return _call(plan.decode, request, decode_body(request.fields, None), estimate=expected)
        params = TransferParams(transfer_id=new_transfer_id(), role="decode", peer="", start=request.start)
        return _call(plan.decode, request, decode_body(request.fields, sign(params, self._secret)), estimate=expected)

    def prefill_call(self, plan: DisaggregatedPlan, request: ClientRequest, params: TransferParams) -> LegRequest:
        signed, relays = sign(params, self._secret), params.relays
        if relays:
            body = relayed_body(request.fields, signed)
        else:
            body = prefill_body(request, signed, first_token=params.first_token)
        # The decode node was told this rank's address.
        rank = line("x-data-parallel-rank", str(plan.rank)) if plan.ranks > 1 else b""
        # A stream names its request: the client is to see one name.
        asked = request if relays else replace(request, names_tokens="")
        expected = _expect(plan.prefill, plan.work_bytes, plan.cached_bytes, request)
        id_suffix = "" if relays else "-prefill"
        return _call(plan.prefill, asked, body, id_suffix=id_suffix, more_headers=rank, estimate=expected)


class Attempt:
    """One plan at work, for the length of a block."""

    def __init__(
        self, shared: AttemptRunner, plan: Plan, request: ClientRequest, relay: FirstTokenRelay | None, history: History
    ) -> None:
        self._shared = shared
        self._history = history
        self._relay = relay
        self._plan = plan
        self._request = request
        self._outcome: Outcome | None = None
        self._hopeful: WhileHopeful | None = None  # while the prefill leg's failure ends the decode leg
        self._taken = False  # the decode node has answered with the prompt's KV
        self._sent: PendingRequest | None = None  # to the prefill node
        self._prefill: asyncio.Task[PrefillOutcome] | None = None
        self._end: Callable[..., None] | None = None
        self._end_stream: Callable[[], None] | None = None
        self._end_computing: Callable[[], None] | None = None  # of a prompt that the decode node computes itself
        self._legs: list[Leg] = []  # the decode node's first
        self._began_s = 0.0
        self._is_shut = False

    async def __aenter__(self) -> Outcome:
        plan, shared, request = self._plan, self._shared, self._request
        self._began_s = perf_counter()
        try:
            if isinstance(plan, LocalPlan):
                self._outcome = await self._alone(plan)
                return self._outcome
            self._end = plan.decode.begin(request.prompt_bytes)
            relay = self._relay if self._relay is not None and self._relay.begin(plan) else None
            params = prefill_params(plan, request, relay)
            is_optional = self._relay is None
            prefill = replace(shared.prefill_call(plan, request, params), is_optional=is_optional)
            self._sent = shared.upstream.send(*prefill.request)  # everything else waits for it
            self._prefill = asyncio.create_task(shared.prefill(prefill, self._sent, relay, moves=plan.moves))
            if relay is not None and _is_timed(request):
                relay.on_first_event = partial(self._end_waiting, prefill, self._sent.at_s)
            # Counted at once: the next choice sees it.
            self._prefill.add_done_callback(plan.prefill.begin(request.prompt_bytes, new_bytes=plan.work_bytes))
            decode = shared.decode_call(plan, request, params, is_ahead=is_optional)
            self._legs = [decode.leg, prefill.leg]
            self._outcome = await self._race(plan, decode, self._prefill)
        except BaseException:
            self._shut(answered=False)
            raise
        return self._outcome

    async def __aexit__(self, _kind: object, exc: BaseException | None, _traceback: object) -> None:
        if isinstance(exc, StreamBrokenError):
            self._shared.report_failure("decode", self._plan.decode, exc.how)
            self._end_leg(exc.how)
        answered = exc is None and isinstance(self._outcome, Opened | PrefillDone)
        if answered and isinstance(self._outcome, Opened):
            if self._relay is not None:
                self._plan.decode.times.ended.observe(perf_counter() - self._began_s)
            self._end_leg()
        self._shut(answered=answered)

    async def _alone(self, plan: LocalPlan) -> Outcome:
        call = self._shared.local_call(plan, self._request)  # estimated before it is counted
        self._end = plan.decode.begin(self._request.prompt_bytes, new_bytes=plan.work_bytes)
        self._legs = [call.leg]
        if not is_on(self._request.fields, "stream") and (
            plan.decode.role == "decode" or (plan.reason == ON_PREFILL and not self._has_names)
        ):
            self._begin_stream()  # its first bytes may be its last ones
        self._end_computing = plan.decode.begin_computing(plan.work_bytes)
        outcome = await self._decode(call)
        if isinstance(outcome, Opened):
            self._begin_tokens()
            self._claim_one(outcome)
        return outcome

    async def _race(
        self, plan: DisaggregatedPlan, decode: LegRequest, prefill: asyncio.Task[PrefillOutcome]
    ) -> Outcome:
        self._hopeful = WhileHopeful(prefill)
        outcome, relay = await first_to_count(self._decode(decode), self._hopeful), self._relay
        if isinstance(outcome, Opened) and relay is not None and relay.is_whole:
            outcome.answer.close()  # both nodes have sent the end of the answer at once
            return PrefillDone(relay.began_s, is_whole=True)
        if isinstance(outcome, Opened):
            self._begin_stream()
            self._settle_prefill()
        self._taken = isinstance(outcome, Opened) and not outcome.recomputed
        if self._taken and isinstance(outcome, Opened) and outcome.answer.is_stream:
            plan.decode.times.handover.observe(self._since_prefill_s(prefill))
        return outcome

    def _end_waiting(self, call: LegRequest, sent_s: float, first_token_s: float) -> None:
        """The prefill node has computed the prompt; it still sends KV, or holds it."""
        _learn(call, first_token_s - sent_s)
        if self._prefill is not None and isinstance(self._plan, DisaggregatedPlan):
            waiting_bytes = self._plan.work_bytes or self._request.prompt_bytes
            self._prefill.add_done_callback(call.node.count_computed(waiting_bytes))

    def _settle_prefill(self) -> None:
        """The decode node has made tokens, or has begun with those it was given: it does not need the prefill leg any more."""
        if self._hopeful is not None:
            self._hopeful.settle()
            self._hopeful.prefill.add_done_callback(self._note_prefill)
            self._hopeful = None

    def _note_prefill(self, prefill: asyncio.Task[PrefillOutcome]) -> None:
        """The prefill leg is over. A decode node is told if no KV comes: a stream that starts with tokens begins before it could come."""
        if self._is_shut:  # the callback was on its way
            return
        if isinstance(self._outcome, Opened):
            self._claim_one(self._outcome)
        if not self._request.start:
            return
        if prefill.cancelled() or prefill.exception() is not None or not isinstance(prefill.result(), PrefillDone):
            assert isinstance(self._plan, DisaggregatedPlan)
            self._shared.cancels.add(self._plan.prefill, self._plan.transfer_id)

    def _claim_one(self, outcome: Opened) -> None:
        """A stream whose prefill leg is over needs one connection from now on."""
        if self._relay is not None and outcome.answer.is_stream:
            self._relay.client.claim.streams()

    @property
    def _has_names(self) -> bool:
        """Whether the tokens of an answer that is not streamed are named."""
        return self._relay is not None and self._relay.stream.kept is not None

    def _begin_tokens(self) -> None:
        """The prompt is computed: the answer's first bytes, or the names of its first tokens, have come."""
        if self._end_computing is not None:
            self._end_computing()
            self._end_computing = None
        self._settle_prefill()
        self._begin_stream()

    def _begin_stream(self) -> None:
        if self._end_stream is None:
            plan = self._plan
            new_bytes = plan.work_bytes if isinstance(plan, LocalPlan) else 0
            self._end_stream = plan.decode.begin_stream(new_bytes or self._request.prompt_bytes)

    async def _decode(self, call: LegRequest) -> DecodeOutcome:
        """Run the decode leg; a client that has part of a stream does not wait for a silent node."""
        relay, shared = self._relay, self._shared
        if relay is None:
            return await shared.decode(call)
        relay.asked_at = time.monotonic()
        if self._request.start and not call.node.starts_with_tokens:
            relay.stream.make_again()
        try:
            with shared.watch.watching(call.node, self._history, relay):
                # Of several prompts the first tokens say nothing of the others.
                is_told = self._has_names and not has_several_prompts(self._request.fields)
                return await shared.decode(call, relay.stream.kept, self._begin_tokens if is_told else nothing)
        except StreamBrokenError as exc:
            shared.report_failure("decode", call.node, exc.how)
            return DecodeFailed(exc.how, exc.message)

    def _since_prefill_s(self, prefill: asyncio.Task[PrefillOutcome]) -> float:
        """Return how long ago the prefill node answered; 0 if it has not yet."""
        if self._relay is not None and self._relay.began_s and not self._request.start:
            return perf_counter() - self._relay.began_s
        if not prefill.done() or prefill.cancelled() or prefill.exception() is not None:
            return 0.0
        outcome = prefill.result()
        return perf_counter() - outcome.answered_s if isinstance(outcome, PrefillDone) else 0.0

    def _end_leg(self, problem: str = "", *, prefill_too: bool = False) -> None:
        """Note the decode leg's end; a leg that has ended stays as it did."""
        for leg in self._legs if prefill_too else self._legs[:1]:
            leg.end(problem)

    def _shut(self, *, answered: bool) -> None:
        """Close what is open; `answered`: to the end."""
        self._is_shut, self._hopeful = True, None
        self._end_leg(CUT, prefill_too=not answered)
        if isinstance(self._outcome, Opened):
            self._outcome.answer.close()
        if self._prefill is not None:
            self._prefill.remove_done_callback(self._note_prefill)
        if self._prefill is not None and self._sent is not None and not self._prefill.done():
            if answered:
                self._shared.outlive(self._prefill)
            else:
                self._prefill.cancel()
                self._sent.close()  # it may not have begun
        if self._relay is not None:
            self._relay.on_first_event = None  # which refers to this attempt
        if isinstance(self._plan, DisaggregatedPlan) and not self._taken:
            self._shared.cancels.add(self._plan.prefill, self._plan.transfer_id)  # no decode node will fetch the prompt
        if self._end_computing is not None:
            self._end_computing()
        if self._end_stream is not None:
            self._end_stream()
        if self._end is not None:
            self._end()


def prefill_params(plan: DisaggregatedPlan, request: ClientRequest, relay: FirstTokenRelay | None) -> TransferParams:
    """Return what the prefill node of a pair is told; with a `relay` its stream goes to the client up to the first token of each choice."""
    return TransferParams(
        transfer_id=plan.transfer_id,
        role="prefill",
        peer="",
        several=has_several_prompts(request.fields),
        choices=relay is not None and relay.stream.choices > 1,
        grids=Grids(plan.prefill.grid, plan.decode.grid),
        first_token=plan.first_token and not request.start,
        relays=relay is not None,
        start=request.start if plan.moves else (),
    )


def _call(
    node: Node,
    request: ClientRequest,
    body: bytes,
    *,
    id_suffix: str = "",
    more_headers: bytes = b"",
    estimate: Estimate | None = None,
) -> LegRequest:
    leg = request.trace.leg(node.role, node.url)
    own = line("x-request-id", request.request_id + id_suffix)
    names = line(TOKEN_IDS_HEADER, request.names_tokens) if request.names_tokens else b""
    sent = (node.url, request.endpoint, b"".join((request.forwarded, own, names, more_headers, leg.line)), body)
    return LegRequest(node=node, request=sent, leg=leg, asked=request, estimate=estimate)


def _expect(node: Node, work_bytes: int, cached_bytes: int, request: ClientRequest) -> Estimate | None:
    """Count a prompt as the node's, and estimate it if its first token can be timed."""
    if not work_bytes:
        return None
    now_s = node.clock()
    node.prompt_rate.add(work_bytes, now_s)
    node.prompt_share.add(node.prefill_time.predict_s(work_bytes, now_s) or 0.0, now_s)
    parts = PromptParts(request.prompt_bytes - cached_bytes, cached_bytes)
    return estimate(node, work_bytes, parts) if _is_timed(request) else None


def _is_timed(request: ClientRequest) -> bool:
    """Whether the first bytes of its stream come with the first token: those of a response come before, those of an answer that goes on are known."""
    return request.endpoint != RESPONSES and not request.start


def _learn(call: LegRequest, first_token_s: float) -> None:
    """Fit the node's prefill time to what was seen."""
    if call.estimate is None:
        return
    node, (prompt_bytes, expected_s, unqueued) = call.node, call.estimate
    node.prefill_time.learn(prompt_bytes, first_token_s, node.clock(), unqueued=unqueued)
    if expected_s:
        node.times.prediction.observe(first_token_s / expected_s)
