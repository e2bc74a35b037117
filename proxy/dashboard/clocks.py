"""One axis for both nodes' instants, from the two messages that both of them timed. Pure.

    P's clock   ────────── reserved ─────────────── commit ────►
                          ▲  RESERVE                  │ COMMIT
    D's clock   ─ reserve_sent ──────────────── commit_received ────►

As NTP does with a question and its answer: half of the difference of the two ways is the most by which it can be wrong,
whatever the machines' clocks say.
"""

from collections.abc import Mapping
from typing import NamedTuple


class Offset(NamedTuple):
    """Where D's `arrived` lies on P's axis, on which `scheduled` is 0."""

    at_s: float
    uncertainty_s: float


def offset(prefill: Mapping[str, float], decode: Mapping[str, float]) -> Offset | None:
    """Return it from P's milestones, counted from its `scheduled`, and D's, counted from its `arrived`.

    None where one of the four instants is missing.
    """
    try:
        early = prefill["reserved"] - decode["reserve_sent"]  # too large by the way of RESERVE
        late = prefill["commit"] - decode["commit_received"]  # too small by the way of COMMIT
    except KeyError:
        return None
    return Offset(round((early + late) / 2, 6), round(abs(early - late) / 2, 6))
