"""When each request of a decode node reached which milestone: the scheduler's own, the workers' and P's.

D's milestones are instants on this machine's monotonic clock, which the scheduler and its workers share. P's came with
COMMIT as distances from its own `scheduled` and are kept apart (`telemetry/timings.py`).
"""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from baton.kv_connector.handoff.metadata import Ending
from baton.kv_connector.telemetry.histogram import SECONDS, Histogram
from baton.kv_connector.telemetry.timings import (
    REMEMBERED_TRANSFERS,
    commit_to_first_step_s,
    counted_from,
    exposed_push_s,
    exposed_transfer_s,
    hidden_share,
)


@dataclass(slots=True)
class _Story:
    transfer_id: str
    peer: str
    marks: dict[str, float] = field(default_factory=dict)  # s, monotonic
    prefill: Mapping[str, float] = field(default_factory=dict)  # P's milestones, s since it scheduled the prompt
    pushing_s: float = 0.0
    loaded: bool = False  # the next step that schedules the request is its first with the KV


class DecodeTimings:
    """Written by the scheduler's thread; `snapshot` is for any thread."""

    def __init__(self) -> None:
        self._open: dict[str, _Story] = {}
        self._recent: deque[dict[str, Any]] = deque(maxlen=REMEMBERED_TRANSFERS)
        self._exposed_transfer_s = Histogram(SECONDS)
        self._commit_to_first_step_s = Histogram(SECONDS)

    def arrived(self, request_id: str, transfer_id: str, peer: str, now: float) -> None:
        self._open[request_id] = _Story(transfer_id, peer, {"arrived": now})

    def reserved(self, request_id: str, now: float) -> None:
        self._open[request_id].marks["reserved"] = now

    def ended(self, endings: Mapping[str, Ending]) -> None:
        """Workers say when transfers ended. Requests that are gone are ignored."""
        for request_id, ending in endings.items():
            if story := self._open.get(request_id):
                story.marks["commit_received" if ending.committed else "failed"] = ending.at_s
                if ending.reserve_sent_s is not None:
                    story.marks["reserve_sent"] = ending.reserve_sent_s
                story.prefill, story.pushing_s = ending.timings_s, ending.pushing_s

    def loaded(self, request_id: str) -> None:
        """The KV is here, and the scheduler knows it."""
        self._open[request_id].loaded = True

    def stepped(self, request_ids: Iterable[str], now: float) -> None:
        for request_id in request_ids:
            story = self._open.get(request_id)
            if story is not None and story.loaded:
                story.marks["first_step"] = now
                self.close(request_id, "loaded")

    def close(self, request_id: str, state: str, reason: str = "") -> None:
        """The request's story ends here. A second time is ignored: the first ending counts."""
        if story := self._open.pop(request_id, None):
            record = _record(request_id, story, "loaded" if story.loaded else state, reason)
            self._exposed_transfer_s.observe(record["exposed_transfer_s"])
            self._commit_to_first_step_s.observe(record["commit_to_first_step_s"])
            self._recent.append(record)

    def forget(self, request_id: str) -> None:
        """Nothing was asked of P: there is no story to tell."""
        self._open.pop(request_id, None)

    def snapshot(self) -> dict[str, Any]:
        return {
            "histograms": {
                "exposed_transfer_s": self._exposed_transfer_s.snapshot(),
                "commit_to_first_step_s": self._commit_to_first_step_s.snapshot(),
            },
            "recent": list(self._recent),
        }


def _record(request_id: str, story: _Story, state: str, reason: str) -> dict[str, Any]:
    timings = counted_from("arrived", story.marks)
    return {
        "transfer_id": story.transfer_id,
        "request_id": request_id,
        "state": state,
        "reason": reason,
        "peer": story.peer,
        "arrived_at_s": story.marks["arrived"],
        "timings_s": timings,
        "prefill": {"timings_s": dict(story.prefill), "pushing_s": story.pushing_s},
        "exposed_push_s": exposed_push_s(story.prefill),
        "commit_to_first_step_s": commit_to_first_step_s(timings),
        "exposed_transfer_s": exposed_transfer_s(story.prefill, timings),
        "hidden_share": hidden_share(story.prefill, story.pushing_s),
    }
