"""Which decode node computes a prompt itself, where no prefill node does, and where requests wait for one. No I/O.

None is given more than `proxy.max_own_prompt_bytes`, so that decode nodes go on making tokens when the prefill nodes
are gone. A request that can be computed nowhere else in any case (`request/eligibility.py`) is not refused for that.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from baton.contracts.http import RECOMPUTED
from baton.proxy.errors import NoRoomError
from baton.proxy.nodes.node import Node
from baton.proxy.planning.outcome import PrefillFailed, PrefillRefused
from baton.proxy.planning.plans import LocalPlan, alone
from baton.proxy.request.eligibility import PROMPT_LOGPROBS
from baton.proxy.routing.local_prefill_policy import LocalPrefillPolicy
from baton.proxy.routing.policies import Work
from baton.proxy.routing.router import Router, choice_of

T = TypeVar("T")
LOOK_S: Final = 0.05


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


class LocalPrefillQueue:
    """Where requests wait whose prefill leg failed while every decode node has as many prompts to compute as it may.

    They were accepted: to refuse them now would lose what can be saved. One of them looks again and again whether there
    is a way; the others stand in line behind it, model by model. Only models that some node serves come here.
    """

    def __init__(self) -> None:
        self._heads: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    def is_waiting(self, model: str) -> bool:
        """Whether a request for this model waits here."""
        head = self._heads.get(model)
        return head is not None and head.locked()

    async def wait(self, attempt: Callable[[], T], model: str, timeout_s: float) -> T:
        """Return what `attempt` returns once it does; raise `NoRoomError` if it does not in time."""
        try:
            async with asyncio.timeout(timeout_s), self._heads[model]:
                while True:
                    try:
                        return attempt()
                    except NoRoomError:
                        await asyncio.sleep(LOOK_S)
        except TimeoutError as exc:
            raise NoRoomError from exc
