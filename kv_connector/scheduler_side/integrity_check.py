"""Compares pool, scheduler and ledger: whenever the engine is about to idle, and on request.

*Before idling* the scheduler's own thread looks. All blocks must be free then, which one number tells; only if they are
not are all of them gone through.

*On request* another thread looks, while the scheduler goes on. What it finds may be a change half-way, or blocks whose
return vLLM defers to the end of a step under way. So a finding counts only if it is still there some steps later.
"""

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from baton.kv_connector.protocol.verification import runs
from baton.kv_connector.scheduler_side.history import BlockHistory
from baton.kv_connector.scheduler_side.integrity import Finding, compare
from baton.kv_connector.scheduler_side.pool_views import PoolViews

if TYPE_CHECKING:
    from vllm.v1.core.block_pool import BlockPool
    from vllm.v1.core.sched.output import SchedulerOutput

logger = logging.getLogger(__name__)

STEPS = 3  # after so many a deferred return has happened
QUIET_S = 0.1  # no step for so long: the engine idles
PATIENCE_S = 2.0  # a question is answered by then
LOOK_EVERY_S = 0.02
REPORTED = 32  # blocks of which the same is to be said count as one


class IntegrityCheck:
    """The check of one scheduler."""

    def __init__(
        self, reservations: Callable[[], Mapping[str, Sequence[int]]], history: BlockHistory | None = None
    ) -> None:
        """`reservations` gives the ledger's view; it is called from any thread."""
        self._reservations = reservations
        self._views: PoolViews | None = None
        self._live: set[str] = set()  # requests that may have blocks
        self._reported: set[Finding] = set()
        self._begun = self._ended = 0  # steps
        self.history = history or BlockHistory()
        self.totals = {"idle_checks": 0, "integrity_findings": 0}

    def bind(self, pool: "BlockPool", cache_manager: Any) -> None:
        self._views = PoolViews(pool, cache_manager)

    # --- the scheduler's thread ---

    def request_arrived(self, request_id: str) -> None:
        self._live.add(request_id)

    def request_ended(self, request_id: str, *, keeps_blocks: bool = False) -> None:
        """A request has ended; if it keeps its blocks, it will be said again."""
        self.history.ended(request_id)
        if not keeps_blocks:
            self._live.discard(request_id)

    def step_begins(self, output: "SchedulerOutput") -> None:
        self._begun += 1
        cached = output.scheduled_cached_reqs
        given = [(new.req_id, new.block_ids) for new in output.scheduled_new_reqs]
        given += [pair for pair in zip(cached.req_ids, cached.new_block_ids, strict=True) if pair[1]]
        for request_id, groups in given:
            for blocks in groups:
                self.history.note("given to", request_id, blocks)

    def step_ends(self) -> None:
        """A step's output has been taken in. Look if nothing is left to be done."""
        self._ended += 1
        if self._is_idle():
            self._before_idling()

    # --- any thread ---

    def ask(self) -> dict[str, Any]:
        """Look until what was found is certain, or gone."""
        suspects = set(self._look())
        begun_s = quiet_since = time.monotonic()
        first = last = self._ended
        settled = not suspects
        while not settled and time.monotonic() - begun_s < PATIENCE_S:
            time.sleep(LOOK_EVERY_S)
            suspects.intersection_update(self._look())
            if (last, self._begun) != (self._ended, self._ended):  # a step is under way, or was
                last, quiet_since = self._ended, time.monotonic()
            settled = not suspects or last - first >= STEPS or time.monotonic() - quiet_since >= QUIET_S
        views = self._bound()
        return {
            "ok": not suspects,
            "settled": settled,
            "owners_known": views.knows_owners,
            "findings": self._report(suspects),
            **self.totals,
        }

    # --- inside ---

    def _bound(self) -> PoolViews:
        assert self._views is not None  # bound before the first step, and before the node serves
        return self._views

    def _is_idle(self) -> bool:
        views = self._bound()
        nobody = views.owns_nothing() if views.knows_owners else not self._live
        return self._begun == self._ended and nobody and not self._reservations()

    def _before_idling(self) -> None:
        self.totals["idle_checks"] += 1
        found = set() if self._bound().all_free() else set(self._look(idle=True))
        new = found - self._reported
        self._reported = found
        self.totals["integrity_findings"] += len(new)
        for finding in self._report(new):
            logger.error("integrity: %s", finding)

    def _look(self, *, idle: bool = False) -> list[Finding]:
        return compare(self._bound().look(self._reservations(), idle=idle))

    def _report(self, findings: Iterable[Finding]) -> list[dict[str, Any]]:
        """Put blocks together of which the same is to be said."""
        now = time.monotonic()

        def same(finding: Finding) -> tuple[str, int, tuple[str, ...], list[str]]:
            return finding.wrong, finding.references, finding.owners, self.history.of(finding.block, now)

        groups = groupby(sorted(findings, key=lambda finding: (same(finding), finding.block)), key=same)
        return [
            {
                "blocks": runs(finding.block for finding in group),
                "what": what,
                "references": references,
                "owners": list(owners),
                "history": history,
            }
            for (what, references, owners, history), group in groups
        ][:REPORTED]
