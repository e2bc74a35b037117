"""How a request will be served: first choice, and what to do after a failure. No I/O; it draws ids and reads the clock.

The order of refusals is the order in which a person would ask: is any decode node there, does one serve the model,
may the prompt be computed elsewhere, is a prefill node there, do the two understand each other's KV.
"""

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from contracts.http import DISAGGREGATED, LOCAL, RECOMPUTED
from contracts.kv_transfer import new_transfer_id
from proxy.classify import reason_for_local
from proxy.errors import ProxyError, UnavailableError, UnknownModelError
from proxy.fields import is_set
from proxy.node import Node, State
from proxy.outcome import DecodeFailed, PrefillFailed, PrefillRefused
from proxy.request import ClientRequest
from proxy.retries import History
from proxy.routing.policies import Work
from proxy.routing.prefixes import prefixes
from proxy.routing.router import Router

NOTHING_YET: Final = History()
NO_PREFILL_CONFIGURED: Final = "no prefill node is configured"
NO_PREFILL_READY: Final = "no prefill node is ready"
NO_PREFILL_MATCHES: Final = "no ready prefill node makes KV that a ready decode node can use"


@dataclass(frozen=True, slots=True, kw_only=True)
class Alone:
    """The decode node computes the prompt itself."""

    decode: Node
    path: str  # LOCAL or RECOMPUTED
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One node computes the prompt, the other decodes."""

    decode: Node
    prefill: Node
    rank: int  # data-parallel rank of the prefill node
    transfer_id: str
    path: str = DISAGGREGATED

    reason: str = ""

    @property
    def ranks(self) -> int:
        """How many data-parallel ranks the prefill node has."""
        return len(self._control_addresses)

    @property
    def control_address(self) -> str:
        """Where the decode node finds the prefill rank."""
        return self._control_addresses[self.rank]

    @property
    def _control_addresses(self) -> list[str]:
        assert self.prefill.info is not None
        return self.prefill.info.control_addresses


Plan = Alone | Pair
Failure = DecodeFailed | PrefillFailed | PrefillRefused


class Planner:
    """Makes plans from the members' present state."""

    def __init__(
        self,
        prefill: Sequence[Node],
        decode: Sequence[Node],
        *,
        prefill_router: Router,
        decode_router: Router,
        when_no_prefill: Literal["decode_local", "refuse"],
        key_header: str = "",
    ) -> None:
        self._prefill = prefill
        self._decode = decode
        self._prefill_router = prefill_router
        self._decode_router = decode_router
        self._key_header = key_header
        self._refuses = when_no_prefill == "refuse"
        self._turn = 0

    def first(self, request: ClientRequest, history: History = NOTHING_YET, keep: Pair | None = None) -> Plan:
        """Choose nodes for a request, none of those that it already failed on.

        Args:
            request: what is asked.
            history: of the request.
            keep: an earlier plan whose prefill node has the prompt in its prefix cache by now.

        Raises:
            ProxyError: nobody can take it, or nobody serves the model.
        """
        work = self._work(request)
        decode = [node for node in self._usable_decode(request.model) if node not in history.lost_decode]
        if not decode:
            raise UnavailableError("no decode node is ready for this model")
        reason = reason_for_local(request.fields)
        if reason is not None:
            return self._alone(work, decode, reason)
        prefill = self._usable_prefill(request.model, history)
        made = {node.fingerprint for node in prefill} - {None}
        matching = [node for node in decode if node.fingerprint in made]
        if not matching:
            return self._without_prefill(work, decode, any_ready=bool(prefill))
        return self._pair(work, prefill, matching, keep)

    def after(
        self, failed: Plan, failure: Failure, request: ClientRequest, history: History, *, may_retry: bool
    ) -> Plan:
        """Choose again after a failure before the first byte, keeping the half that is healthy.

        Args:
            failed: the plan that failed.
            failure: how.
            request: what is asked.
            history: of the request, this failure included.
            may_retry: whether another node may be asked. A decode node may compute a prompt itself in any case.

        Raises:
            ProxyError: the request ends here.
        """
        if isinstance(failure, DecodeFailed):
            return self._after_decode(failed, failure, request, history, may_retry=may_retry)
        if may_retry and isinstance(failure, PrefillFailed):
            usable = self._usable_prefill(request.model, history)
            makers = [node for node in usable if node.fingerprint == failed.decode.fingerprint]
            if makers:
                return self._pair(self._work(request), makers, [failed.decode])
        if self._refuses:
            raise failure.error()
        return Alone(decode=failed.decode, path=RECOMPUTED, reason=failure.reason)

    def _after_decode(
        self, failed: Plan, failure: DecodeFailed, request: ClientRequest, history: History, *, may_retry: bool
    ) -> Plan:
        if not may_retry:
            raise failure.error()
        try:
            return self.first(request, history, failed if isinstance(failed, Pair) else None)
        except ProxyError as exc:
            raise failure.error() from exc

    def _work(self, request: ClientRequest) -> Work:
        self._turn += 1
        reads_prompts = self._prefill_router.reads_prompts or self._decode_router.reads_prompts
        return Work(
            prompt_bytes=request.prompt_bytes,
            turn=self._turn,
            prefixes=prefixes(request.prompt, request.model) if reads_prompts else (),
            key=key_of(request, self._key_header),
            draw=random.random(),  # noqa: S311  # no secret
            now_s=time.monotonic(),
        )

    def _usable_prefill(self, model: str, history: History) -> list[Node]:
        return [
            node
            for node in self._prefill
            if node.state is State.READY and node.serves(model) and node not in history.lost_prefill
        ]

    def _usable_decode(self, model: str) -> list[Node]:
        ready = [node for node in self._decode if node.state is State.READY]
        if not ready:
            raise UnavailableError("no decode node is ready")
        if not any(node.serves(model) for node in self._decode):
            raise UnknownModelError(f"the model '{model}' does not exist", param="model")
        return [node for node in ready if node.serves(model)]

    def _alone(self, work: Work, decode: Sequence[Node], reason: str) -> Alone:
        return Alone(decode=self._decode_router.choose(work, decode), path=LOCAL, reason=reason)

    def _without_prefill(self, work: Work, decode: Sequence[Node], *, any_ready: bool) -> Alone:
        reason = NO_PREFILL_MATCHES if any_ready else NO_PREFILL_READY if self._prefill else NO_PREFILL_CONFIGURED
        if self._refuses:
            raise UnavailableError(reason)
        return self._alone(work, decode, reason)

    def _pair(self, work: Work, prefill: Sequence[Node], decode: Sequence[Node], keep: Pair | None = None) -> Pair:
        taker = self._decode_router.choose(work, decode)
        makers = [node for node in prefill if node.fingerprint == taker.fingerprint]
        if keep is not None and keep.prefill in makers:
            return Pair(decode=taker, prefill=keep.prefill, rank=keep.rank, transfer_id=new_transfer_id())
        maker = self._prefill_router.choose(work, makers)
        assert maker.info is not None
        rank = work.turn % len(maker.info.control_addresses)
        return Pair(decode=taker, prefill=maker, rank=rank, transfer_id=new_transfer_id())


def key_of(request: ClientRequest, header: str) -> str:
    """Return what `consistent_hash` keeps together: that header's value, else the body's `user`; empty if neither is."""
    if header and (value := next((text for name, text in request.forwarded if name.lower() == header), "")):
        return value
    return bytes(request.fields["user"]).decode(errors="replace") if is_set(request.fields, "user") else ""
