"""What the milestones of one transfer say: how much of it showed, and how much was hidden. Pure.

A milestone is an instant on one machine's monotonic clock, in seconds. P's count from its own `scheduled`, D's from its
own `arrived`: they are never subtracted from each other. A figure of both nodes adds durations.

    P   scheduled ── first_layer ── … ── last_layer ────── commit      reserved and the pushes lie anywhere between
                                             └─ exposed on P ─┘
    D   arrived ── reserved ── reserve_sent ───────── commit_received ── first_step
                                                             └─ exposed on D ─┘
"""

from collections.abc import Mapping

Timings = Mapping[str, float]  # milestone → s

LEAST_TO_HIDE_S = 0.010  # of prefill or transfer: below it a share shows the fixed costs and nothing else
REMEMBERED_TRANSFERS = 64  # ended ones that a node can still tell about, on each side


def counted_from(origin: str, marks: Timings) -> dict[str, float]:
    """Return the milestones relative to one of them, in order, s to the microsecond; empty if that one is missing."""
    if origin not in marks:
        return {}
    in_order = sorted(marks.items(), key=lambda mark: mark[1])
    return {name: round(at - marks[origin], 6) for name, at in in_order}


def exposed_push_s(prefill: Timings) -> float | None:
    """Return how much later COMMIT came than the prefill alone would have allowed, on P."""
    return _between(prefill, "last_layer", "commit")


def commit_to_first_step_s(decode: Timings) -> float | None:
    """Return how long D took from COMMIT to the first step that computes with the KV."""
    return _between(decode, "commit_received", "first_step")


def exposed_transfer_s(prefill: Timings, decode: Timings) -> float | None:
    """Return how much the hand-over added to the time to first token: what showed on P plus what showed on D.

    COMMIT's way from P to D is not in it: only a clock that both share could tell.
    """
    on_p, on_d = exposed_push_s(prefill), commit_to_first_step_s(decode)
    return None if on_p is None or on_d is None else on_p + on_d


def hidden_share(prefill: Timings, pushing_s: float) -> float | None:
    """Return which share of the shorter of prefill and transfer disappeared behind the other.

    With C the prefill, X the transfer (`pushing_s`, in which at least one push was under way) and M both together it is
    (C + X - M) / min(C, X): 1 when M is the longer of the two, 0 when they ran one after the other, below 0 when
    something else (a late RESERVE) took time as well. None where a milestone of P is missing or there was too little to
    hide.
    """
    computing_s, measured_s = _between(prefill, "scheduled", "last_layer"), _between(prefill, "scheduled", "commit")
    if computing_s is None or measured_s is None:
        return None
    shorter_s, longer_s = sorted((computing_s, pushing_s))
    return 1 - (measured_s - longer_s) / shorter_s if shorter_s > LEAST_TO_HIDE_S else None


def _between(timings: Timings, begin: str, end: str) -> float | None:
    return timings[end] - timings[begin] if begin in timings and end in timings else None
