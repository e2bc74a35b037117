"""Notices that D stands still for want of blocks, so that early reservations are given back (I5). Pure.

vLLM schedules no waiting request behind one that it cannot give blocks to. Early reservations may hold those blocks for
prompts that queue at P, on a pool that is full of prompts whose requests queue here, behind that one: a circle. It is
closed only if D computes nothing, since what runs ends some day. So D then computes what P has not started.

It could not wait for P instead, in favour of the request that lacks blocks: vLLM counts those of a request whose
receive has failed against every other receive until its prompt is computed (`Scheduler._inflight_prefills`).
"""


class Stalls:
    """How long D has stood still, and how many blocks it lacks."""

    def __init__(self, patience_s: float) -> None:
        """`patience_s`: how long D may stand still before blocks are wanted."""
        self._patience_s = patience_s
        self._asked: tuple[str, int] | None = None  # the last request that could be scheduled, and the blocks it needs
        self._since: float | None = None  # s

    def asked(self, request_id: str, blocks: int) -> None:
        """A request can be scheduled in this step, if vLLM has so many blocks for it."""
        self._asked = request_id, blocks

    def placed(self, request_id: str) -> None:
        if self._asked is not None and self._asked[0] == request_id:
            self._asked = None

    def step_ends(self, *, computes: bool, now: float) -> int:
        """Return how many blocks a request has lacked for too long; 0: none. `computes`: the step computes something."""
        asked, self._asked = self._asked, None
        if asked is None or computes:
            self._since = None
        elif self._since is None:
            self._since = now
        elif now - self._since >= self._patience_s:
            self._since = now
            return asked[1]
        return 0
