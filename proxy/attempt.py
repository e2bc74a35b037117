"""One attempt at a request: the legs of one plan, from their start until both are settled.

An attempt that the client does not see to its end (it left, the deadline passed, another plan follows) closes every
connection at once: that is how a vLLM server learns to stop. It may have learned too late, or never have read the
request; so the prefill node is told as well (`cancels.py`), unless the decode node has answered with the prompt's KV.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from contracts.configuration.schema import BatonConfig
from contracts.kv_transfer import TransferParams, sign
from contracts.secret import ClusterSecret
from proxy.bodies import decode_body, prefill_body
from proxy.cancels import Cancels
from proxy.classify import has_several_prompts
from proxy.errors import Kind, StreamBrokenError
from proxy.headers import line
from proxy.legs import Call, first_to_count, open_decode, run_prefill
from proxy.metrics import Metrics
from proxy.node import Node
from proxy.nodes import Members
from proxy.outcome import (
    DecodeFailed,
    DecodeOutcome,
    Opened,
    PrefillDone,
    PrefillFailed,
    PrefillOutcome,
    PrefillRefused,
)
from proxy.plans import Alone, Pair, Plan
from proxy.request import ClientRequest
from proxy.upstream import Upstream

# How long a prefill leg may outlive its request, so that a good answer on its way is not turned into an abort.
PREFILL_GRACE_S: Final = 1.0

Outcome = DecodeOutcome | PrefillFailed | PrefillRefused


class Attempts:
    """Runs plans."""

    def __init__(
        self,
        config: BatonConfig,
        secret: ClusterSecret,
        *,
        upstream: Upstream,
        members: Members,
        metrics: Metrics,
        cancels: Cancels,
    ) -> None:
        self._prefill_timeout_s = config.transfer.transfer_timeout_s
        self._secret = secret
        self._upstream = upstream
        self._members = members
        self._metrics = metrics
        self._cancels = cancels
        self._outliving: set[asyncio.Task[PrefillOutcome]] = set()

    async def stop(self) -> None:
        """End the prefill legs that outlived their requests."""
        for task in self._outliving:
            task.cancel()
        await asyncio.gather(*self._outliving, return_exceptions=True)

    @asynccontextmanager
    async def run(self, plan: Plan, request: ClientRequest) -> AsyncIterator[Outcome]:
        """Run a plan and yield the outcome that counts; an opened answer stays open for the block."""
        with plan.decode.carrying(request.prompt_bytes):
            legs = self._alone(plan, request) if isinstance(plan, Alone) else self._pair(plan, request)
            async with legs as outcome:
                try:
                    yield outcome
                except StreamBrokenError as exc:
                    self._note("decode", plan.decode, exc.how)
                    raise

    @asynccontextmanager
    async def _alone(self, plan: Alone, request: ClientRequest) -> AsyncIterator[Outcome]:
        with plan.decode.computing(plan.own_bytes):  # until its first bytes
            outcome = await self._decode(_call(plan.decode, request, decode_body(request.fields, None)))
        try:
            yield outcome
        finally:
            _close(outcome)

    @asynccontextmanager
    async def _pair(self, plan: Pair, request: ClientRequest) -> AsyncIterator[Outcome]:
        prefill = asyncio.create_task(self._prefill(self._prefill_call(plan, request)))
        prefill.add_done_callback(plan.prefill.begin(request.prompt_bytes))  # counted at once: the next choice sees it
        decode = asyncio.create_task(self._decode(self._decode_call(plan, request)))
        answered = taken = False
        try:
            outcome = await first_to_count(decode, prefill)
            taken = isinstance(outcome, Opened) and not outcome.recomputed
            yield outcome
            answered = isinstance(outcome, Opened)
        finally:
            self._settle(decode, prefill, answered=answered)
            if not taken:
                self._cancels.add(plan.prefill, plan.transfer_id)

    def _settle(
        self, decode: asyncio.Task[DecodeOutcome], prefill: asyncio.Task[PrefillOutcome], *, answered: bool
    ) -> None:
        decode.cancel()
        if decode.done() and not decode.cancelled():
            _close(decode.result())
        if prefill.done():
            return
        if not answered:
            prefill.cancel()
            return
        self._outliving.add(prefill)
        prefill.add_done_callback(self._outliving.discard)
        asyncio.get_running_loop().call_later(PREFILL_GRACE_S, prefill.cancel)

    async def _decode(self, call: Call) -> DecodeOutcome:
        outcome = await open_decode(self._upstream, call)
        if isinstance(outcome, DecodeFailed):
            self._note("decode", call.node, outcome.kind)
        else:
            self._members.succeeded(call.node)
        return outcome

    async def _prefill(self, call: Call) -> PrefillOutcome:
        outcome = await run_prefill(self._upstream, call, timeout_s=self._prefill_timeout_s)
        if not isinstance(outcome, PrefillDone):
            self._note("prefill", call.node, outcome.kind)
        else:
            self._members.succeeded(call.node)
        return outcome

    def _note(self, role: str, node: Node, kind: Kind) -> None:
        self._metrics.leg_failed(role, kind)
        self._members.report(node, kind)

    def _decode_call(self, plan: Pair, request: ClientRequest) -> Call:
        several = has_several_prompts(request.fields)
        params = TransferParams(transfer_id=plan.transfer_id, role="decode", peer=plan.control_address, several=several)
        return _call(plan.decode, request, decode_body(request.fields, sign(params, self._secret)))

    def _prefill_call(self, plan: Pair, request: ClientRequest) -> Call:
        several = has_several_prompts(request.fields)
        params = TransferParams(transfer_id=plan.transfer_id, role="prefill", peer="", several=several)
        body = prefill_body(request.fields, sign(params, self._secret))
        # The decode node was told this rank's address.
        rank = line("x-data-parallel-rank", str(plan.rank)) if plan.ranks > 1 else b""
        return _call(plan.prefill, request, body, id_suffix="-prefill", more_headers=rank)


def _call(node: Node, request: ClientRequest, body: bytes, *, id_suffix: str = "", more_headers: bytes = b"") -> Call:
    headers = b"".join((request.forwarded, line("x-request-id", request.request_id + id_suffix), more_headers))
    return Call(node=node, endpoint=request.endpoint, headers=headers, body=body)


def _close(outcome: Outcome) -> None:
    if isinstance(outcome, Opened):
        outcome.answer.close()
