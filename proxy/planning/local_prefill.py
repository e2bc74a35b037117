"""Which decode node computes a prompt itself, where no prefill node does. No I/O.

None is given more than `proxy.max_own_prompt_bytes`, so that decode nodes go on making tokens when the prefill nodes
are gone. A request that can be computed nowhere else in any case (`request/eligibility.py`) is not refused for that.
"""

from collections.abc import Sequence

from baton.contracts.http import RECOMPUTED
from baton.proxy.errors import NoRoomError
from baton.proxy.nodes.node import Node
from baton.proxy.planning.outcome import PrefillFailed, PrefillRefused
from baton.proxy.planning.plans import LocalPlan, alone
from baton.proxy.request.eligibility import PROMPT_LOGPROBS
from baton.proxy.routing.local_prefill_policy import LocalPrefillPolicy
from baton.proxy.routing.policies import Work
from baton.proxy.routing.router import Router, choice_of


class LocalPrefillPlanner:
    """Makes plans of one node."""

    def __init__(self, router: Router, local_policy: LocalPrefillPolicy) -> None:
        self._router = router
        self._local_policy = local_policy

    def first(self, work: Work, decode: Sequence[Node], reason: str, *, nowhere_else: bool = False) -> LocalPlan:
        """Choose a node, of at least one; `NoRoomError`: all have as much to compute as they may."""
        if not (free := self._with_room(work, decode)):
            if not nowhere_else:
                raise NoRoomError
            free = list(decode)
        choice = self._router.choice(work, free)
        if reason == PROMPT_LOGPROBS:  # these skip the prefix cache
            choice = choice_of(choice.node, work.prompt_bytes)
        return alone(choice, reason)

    def after(
        self, work: Work, first: Sequence[Node], others: Sequence[Node], failure: PrefillFailed | PrefillRefused
    ) -> LocalPlan:
        """Choose a node after a prefill leg failed: of the `first` ones (who was to take the KV), if one has room.

        Raises `NoRoomError` if all have as much to compute as they may.
        """
        free = self._with_room(work, first) or self._with_room(work, others)
        if not free:
            raise NoRoomError
        node = self._router.choose(work, free)
        # The router believes that the first node has what it was promised; it has nothing.
        size_bytes = work.prompt_bytes
        return LocalPlan(
            decode=node, path=RECOMPUTED, reason=failure.reason, label=failure.label, work_bytes=size_bytes
        )

    def _with_room(self, work: Work, nodes: Sequence[Node]) -> list[Node]:
        return [node for node in nodes if self._local_policy.may_compute(work.prompt_bytes, node)]
