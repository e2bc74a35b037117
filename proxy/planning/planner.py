"""How a request will be served: first choice, and what to do after a failure. No I/O; it draws ids and reads the clock.

The order of refusals is the order in which a person would ask: is any decode node there, does one serve the model,
may the prompt be computed elsewhere, is a prefill node there, do the two understand each other's KV.
"""

import math
import random
import time
from collections.abc import Sequence
from typing import Literal

from baton.contracts.kv_transfer import new_transfer_id
from baton.contracts.node_info import compatible
from baton.proxy.errors import NoRoomError, ProxyError, UnavailableError
from baton.proxy.http.headers import find
from baton.proxy.nodes.node import LONGEST_SILENCE_S, Node, Revision, State, usable
from baton.proxy.planning import reasons
from baton.proxy.planning.fleet import Fleet, Usable, that_fit
from baton.proxy.planning.local_prefill import LocalPrefillPlanner
from baton.proxy.planning.outcome import DecodeFailed, PrefillFailed, PrefillRefused
from baton.proxy.planning.placement import Placement, Targets, choose_placement
from baton.proxy.planning.plans import DisaggregatedPlan, LocalPlan, Plan, alone
from baton.proxy.planning.prefill_answers import may_answer, that_can_answer
from baton.proxy.planning.retry_policy import NOTHING_YET, History
from baton.proxy.request.eligibility import PROMPT_LOGPROBS, generates_little, has_several_prompts, reason_for_local
from baton.proxy.request.endpoints import COMPLETIONS
from baton.proxy.request.fields import is_set
from baton.proxy.request.parse import ClientRequest
from baton.proxy.request.single_node import reason_alone
from baton.proxy.routing.local_prefill_policy import LocalPrefillPolicy, Verdict
from baton.proxy.routing.policies import Work
from baton.proxy.routing.prefixes import NO_STEPS, Steps, prefixes
from baton.proxy.routing.router import Choice, Router, choice_of

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
        local_policy: LocalPrefillPolicy,
        when_no_prefill: Literal["decode_local", "refuse"],
        key_header: str = "",
        prefill_patience_s: float = math.inf,
        targets: Targets | None = None,
        revision: Revision | None = None,
    ) -> None:
        """`local_policy` says which prompts decode nodes compute, `when_no_prefill` whether all where no prefill node can.

        `prefill_patience_s`: how long a prefill node may be silent before decode nodes compute prompts in its place.
        `key_header`: whose value `consistent_hash` keeps together. `targets`: of a choice by cost; None: all that may
        be goes to a pair. `revision` counts the changes of all these nodes; see `Fleet`.
        """
        self._prefill_router = prefill_router
        self._decode_router = decode_router
        self._local_policy = local_policy
        self._local_planner = LocalPrefillPlanner(decode_router, local_policy)
        self._key_header = key_header
        self._targets = targets
        self._refuses = when_no_prefill == "refuse"
        self._prefill_patience_s = math.inf if self._refuses else prefill_patience_s
        self._fleet = Fleet(prefill, decode, revision=revision, patience_s=self._prefill_patience_s)
        self._turn = 0

    def first(
        self,
        request: ClientRequest,
        history: History = NOTHING_YET,
        keep: DisaggregatedPlan | None = None,
        *,
        others_wait: bool = False,
    ) -> Plan:
        """Choose nodes for a request, none of those that it already failed on.

        `keep`: an earlier plan whose prefill node has the prompt in its prefix cache by now. `others_wait`: accepted
        requests wait for a decode node that computes their prompts.

        Raises:
            NoRoomError: no prefill node can take it, and the decode nodes compute as much as they may, or others wait.
            ProxyError: no node can take it, or no node serves the model.
        """
        work = self._work(request)
        found = self._fleet.usable(request.model, history)
        prefill: Sequence[Node] = found.prefill
        decode: Sequence[Node] = found.decode
        if not decode:
            raise UnavailableError("no decode node is ready for this model")
        if request.start and not (decode := _that_start(decode, request)):
            raise UnavailableError("no decode node starts requests with tokens")
        reason = reason_for_local(request.fields) or reason_alone(request)
        if reason is not None:
            return self._on_one_node(request, work, found, decode, reason)
        prefill_nodes = that_can_answer(request, prefill, decode)
        if prefill_nodes and not request.start:
            return alone(self._prefill_router.choice(work, prefill_nodes), reasons.ONE_TOKEN)
        matching: Sequence[Node] = that_fit(decode, prefill) if request.start else found.matching
        if not matching:
            try:
                return self._without_prefill(work, prefill, decode, others_wait=others_wait)
            except NoRoomError:  # late is better than refused
                prefill = self._fleet.usable_prefill(request.model, history, LONGEST_SILENCE_S)
                matching = that_fit(decode, prefill)
                if not matching:
                    raise
        chosen_decode = self._decode_router.preview(work, matching)
        verdict = self._local_policy.decide(chosen_decode.new_bytes, chosen_decode.node)
        if verdict is Verdict.LOCAL:
            self._decode_router.give(work, chosen_decode)
            return alone(chosen_decode, reasons.SHORT)
        fitting = (
            found.prefill_for(chosen_decode.node)
            if prefill is found.prefill
            else that_fit(prefill, [chosen_decode.node])
        )
        if keep is not None or history.attempts or request.start or others_wait:
            self._decode_router.give(work, chosen_decode)
            return self._pair(work, fitting, chosen_decode.node, keep, label=verdict)
        prefill_nodes_share = len(fitting) / (len(fitting) + len(matching))
        return self._place(request, work, chosen_decode, fitting, prefill_nodes_share, label=verdict)

    def move(self, request: ClientRequest, source: Node, history: History) -> DisaggregatedPlan | None:
        """Choose the decode node on which an answer goes on with the KV from `source`, which it leaves; None if there is none."""
        if not _can_send(source, request):
            return None
        others = [node for node in self._other_decode(request.model, history, source) if node.state is State.READY]
        # Once it has changed its role and back, it is another member with the same address.
        starting = [
            node for node in others if node.sends_streams and node.starts_with_tokens and node.url != source.url
        ]
        if not (fitting := that_fit(starting, [source])):
            return None
        chosen = self._decode_router.choose(self._work(request), fitting)
        return DisaggregatedPlan(decode=chosen, prefill=source, moves=True, rank=0, transfer_id=new_transfer_id())

    def return_answer(self, request: ClientRequest, source: Node, destination: Node) -> DisaggregatedPlan | None:
        """Plan how the KV of an answer that has ended goes from its decode node to a prefill node; None: it cannot."""
        ready = all(node.state is State.READY and node.sends_streams for node in (source, destination))
        can = _can_send(source, request) and destination.starts_with_tokens and source.url != destination.url
        if not ready or not can or not that_fit([destination], [source]):
            return None
        return DisaggregatedPlan(decode=destination, prefill=source, moves=True, rank=0, transfer_id=new_transfer_id())

    def after(
        self,
        failed: Plan,
        failure: Failure,
        request: ClientRequest,
        history: History,
        *,
        may_retry: bool,
        keep: DisaggregatedPlan | None = None,
    ) -> Plan:
        """Choose again after a failure before the first byte, which `history` includes; keep the half that is healthy.

        `may_retry`: another node may be asked; a decode node may compute a prompt itself in any case. `keep`: an
        earlier plan whose prefill node has the prompt in its prefix cache; else it is the one that failed.

        Raises:
            NoRoomError: no decode node may be given another prompt to compute, for now.
            ProxyError: the request ends here.
        """
        if keep is None and isinstance(failed, DisaggregatedPlan):
            keep = failed
        if isinstance(failure, DecodeFailed):
            if not may_retry:
                raise failure.error()
            try:
                return self.first(request, history, keep)
            except NoRoomError:
                raise
            except ProxyError as exc:
                raise failure.error() from exc
        work = self._work(request)
        others = self._other_decode(request.model, history, failed.decode)
        if request.start:
            others = _that_start(others, request)
        decode_nodes = [failed.decode] if self._is_kept(failed.decode, others) or not others else others
        is_move = isinstance(failed, DisaggregatedPlan) and failed.moves
        if may_retry and (isinstance(failure, PrefillFailed) or is_move):
            prefill_nodes = self._fleet.usable_prefill(request.model, history, self._prefill_patience_s)
            if matching := that_fit(decode_nodes, prefill_nodes):
                chosen_decode = self._decode_router.choose(work, matching) if decode_nodes is others else failed.decode
                return self._pair(work, that_fit(prefill_nodes, [chosen_decode]), chosen_decode, keep)
        if self._refuses:
            raise failure.error()
        return self._local_planner.after(work, decode_nodes, others, failure)

    def _place(
        self,
        request: ClientRequest,
        work: Work,
        chosen_decode: Choice,
        prefill_nodes: Sequence[Node],
        prefill_nodes_share: float,
        *,
        label: str,
    ) -> Plan:
        """Choose the way of a request that has not failed yet."""
        chosen_prefill = self._prefill_router.preview(work, prefill_nodes)
        placement = Placement.PAIR
        if self._targets is not None:
            may_compute = self._local_policy.may_compute(chosen_decode.work_bytes, chosen_decode.node)
            placement = choose_placement(
                chosen_prefill,
                chosen_decode,
                self._targets,
                prompt_bytes=work.prompt_bytes,
                prefill_nodes_share=prefill_nodes_share,
                decode_may_compute=may_compute and not self._refuses,
                prefill_may_decode=may_answer(request, chosen_prefill.node, chosen_decode.node),
            )
        if placement is not Placement.ON_DECODE:
            self._prefill_router.give(work, chosen_prefill)
        if placement is not Placement.ON_PREFILL:
            self._decode_router.give(work, chosen_decode)
        match placement:
            case Placement.ON_DECODE:
                return alone(chosen_decode, reasons.ON_DECODE)
            case Placement.ON_PREFILL:
                return alone(chosen_prefill, reasons.ON_PREFILL)
            case Placement.PAIR:
                return _paired(work, chosen_prefill, chosen_decode.node, label)

    def _on_one_node(
        self, request: ClientRequest, work: Work, found: Usable, decode: Sequence[Node], reason: str
    ) -> LocalPlan:
        # Answers of the other APIs depend on parsers, which a prefill node may not have been given.
        is_scored = request.endpoint == COMPLETIONS and reason == PROMPT_LOGPROBS and generates_little(request.fields)
        if is_scored and (matching := that_fit(found.prefill, decode)):
            node = self._prefill_router.choose(work, matching)
            # Log probabilities of a prompt skip the prefix cache.
            return alone(choice_of(node, work.prompt_bytes), reason)
        return self._local_planner.first(work, decode, reason, nowhere_else=True)

    def _work(self, request: ClientRequest) -> Work:
        self._turn += 1
        reads = self._prefill_router.reads_prompts or self._decode_router.reads_prompts
        chunks = prefixes(request.prompt, request.model) if reads else ()
        steps = Steps(request.prompt, chunks, request.model) if reads else NO_STEPS
        return Work(
            prompt_bytes=request.prompt_bytes,
            turn=self._turn,
            prefixes=chunks,
            steps=steps,
            key=key_of(request, self._key_header),
            draw=random.random(),  # noqa: S311  # no secret
            now_s=time.monotonic(),
        )

    def _other_decode(self, model: str, history: History, chosen_decode: Node) -> list[Node]:
        return usable(
            node
            for node in self._fleet.decode
            if node.serves(model) and node is not chosen_decode and not history.has_lost(node)
        )

    def _is_kept(self, chosen_decode: Node, others: Sequence[Node]) -> bool:
        """Whether a decode node that a request was to go to still takes work; its breaker does not matter."""
        if chosen_decode.draining or chosen_decode not in self._fleet.decode:
            return False
        is_best = not any(other.probed is State.READY for other in others)
        return chosen_decode.probed is State.READY or (chosen_decode.probed is State.SILENT and is_best)

    def _without_prefill(
        self, work: Work, prefill: Sequence[Node], decode: Sequence[Node], *, others_wait: bool
    ) -> LocalPlan:
        reason = self._no_prefill_because(prefill, decode)
        if self._refuses:
            raise UnavailableError(reason)
        if others_wait:
            raise NoRoomError
        return self._local_planner.first(work, decode, reason)

    def _no_prefill_because(self, prefill: Sequence[Node], decode: Sequence[Node]) -> str:
        if not prefill:
            return reasons.NO_PREFILL_READY if self._fleet.prefill else reasons.NO_PREFILL_CONFIGURED
        made = {node.fingerprint for node in prefill} - {None}
        used = {node.fingerprint for node in decode} - {None}
        alike = any(
            compatible(chosen_prefill, chosen_decode)
            for chosen_prefill in made
            for chosen_decode in used
            if chosen_prefill and chosen_decode
        )
        return reasons.NO_PREFILL_SPEAKS if alike else reasons.NO_PREFILL_MATCHES

    def _pair(
        self,
        work: Work,
        prefill_nodes: Sequence[Node],
        chosen_decode: Node,
        keep: DisaggregatedPlan | None = None,
        label: str = "",
    ) -> DisaggregatedPlan:
        if keep is not None and keep.prefill in prefill_nodes and keep.rank < keep.ranks:
            return DisaggregatedPlan(
                decode=chosen_decode, prefill=keep.prefill, rank=keep.rank, transfer_id=new_transfer_id(), label=label
            )
        return _paired(work, self._prefill_router.choice(work, prefill_nodes), chosen_decode, label)


def _paired(work: Work, chosen_prefill: Choice, chosen_decode: Node, label: str) -> DisaggregatedPlan:
    node = chosen_prefill.node
    assert node.info is not None
    return DisaggregatedPlan(
        decode=chosen_decode,
        prefill=node,
        rank=work.turn % len(node.info.control_addresses),
        transfer_id=new_transfer_id(),
        label=label,
        work_bytes=chosen_prefill.work_bytes,
        cached_bytes=chosen_prefill.cached_bytes,
    )


def _that_start(decode: Sequence[Node], request: ClientRequest) -> list[Node]:
    """Return the decode nodes on which an answer that has tokens goes on; all of them, if it may be made from the start and none starts with tokens."""
    starting = [node for node in decode if node.starts_with_tokens]
    return starting or ([*decode] if request.start_is_optional else [])


def key_of(request: ClientRequest, header: str) -> str:
    """Return what `consistent_hash` keeps together: that header's value, else the body's `user`; empty if neither is."""
    if header and (value := find(request.headers, header.encode())):
        return value.decode("latin-1")
    return bytes(request.fields["user"]).decode(errors="replace") if is_set(request.fields, "user") else ""


def _can_send(source: Node, request: ClientRequest) -> bool:
    """Whether a node can send the KV of an answer to this request."""
    if not source.sends_streams or has_several_prompts(request.fields):
        return False
    return not reason_for_local(request.fields) and not reason_alone(request)
