"""What a prefill rank remembers of the transfers that have ended: how many, how well, and the last ones in detail."""

from collections import deque
from collections.abc import Mapping
from typing import Any

from baton.kv_connector.handoff.outgoing import ProducerTransfer
from baton.kv_connector.handoff.producer import DECISIONS
from baton.kv_connector.protocol.messages import Commit, Fail
from baton.kv_connector.telemetry.histogram import SECONDS, SHARE, Histogram
from baton.kv_connector.telemetry.timings import (
    REMEMBERED_TRANSFERS,
    counted_from,
    exposed_push_s,
    hidden_share,
)

REMEMBERED_FAILURES = 32


class Accounts:
    """Written and read with the worker's lock held."""

    def __init__(self) -> None:
        self._totals = dict.fromkeys(
            ("committed", "revoked", "cancelled", "failed", "dirty", "mismatched", "bytes_committed", "bytes_expected"),
            0,
        )
        self._exposed_push_s = Histogram(SECONDS)
        self._hidden_share = Histogram(SHARE)
        self._recent: deque[dict[str, Any]] = deque(maxlen=REMEMBERED_TRANSFERS)
        self._failures: deque[dict[str, Any]] = deque(maxlen=REMEMBERED_FAILURES)

    def add(self, transfer: ProducerTransfer, outcome: Commit | Fail, described: Mapping[str, Any]) -> None:
        """Take in a transfer that has just ended; `described` is what an open one shows."""
        state = _state(outcome)
        self._totals[state] += 1
        if isinstance(outcome, Commit):
            self._totals["bytes_committed"] += described["bytes_pushed"]
            self._totals["bytes_expected"] += described["bytes_expected"]
        elif state in ("failed", "dirty"):
            self._failures.append({**described, "state": state, "reason": outcome.reason})
        if "scheduled" not in transfer.marks:
            return
        record = {**described, "state": state, **_timed(transfer)}
        if isinstance(outcome, Commit):
            self._exposed_push_s.observe(record["exposed_push_s"])
            self._hidden_share.observe(record["hidden_share"])
        else:
            record["reason"] = outcome.reason
        self._recent.append(record)

    def add_mismatch(self, transfer_id: str, reason: str) -> None:
        """A transfer that had been committed arrived wrong."""
        self._totals["mismatched"] += 1
        self._failures.append({"transfer_id": transfer_id, "state": "mismatched", "reason": reason})

    def snapshot(self, sender_totals: Mapping[str, int]) -> dict[str, Any]:
        return {
            "totals": {**self._totals, **sender_totals},
            "histograms": {
                "exposed_push_s": self._exposed_push_s.snapshot(),
                "hidden_share": self._hidden_share.snapshot(),
            },
            "recent": list(self._recent),
            "failures": list(self._failures),
        }


def ended_at(transfer: ProducerTransfer) -> float:
    return transfer.marks.get("commit", transfer.marks.get("failed", transfer.since))


def _state(outcome: Commit | Fail) -> str:
    if isinstance(outcome, Commit):
        return "committed"
    return "dirty" if outcome.dirty else DECISIONS.get(outcome.reason, "failed")


def _timed(transfer: ProducerTransfer) -> dict[str, Any]:
    """The milestones, all on this machine's monotonic clock, and what follows from them."""
    timings = counted_from("scheduled", transfer.marks)
    return {
        "scheduled_at_s": transfer.marks["scheduled"],
        "timings_s": timings,
        "pushing_s": round(transfer.pushing_s, 6),
        "exposed_push_s": exposed_push_s(timings),
        "hidden_share": hidden_share(timings, transfer.pushing_s),
    }
