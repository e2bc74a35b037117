"""What one fault did: what the clients got, how long it took, and what did not hold."""

from collections import Counter
from dataclasses import dataclass, field

from baton.contracts.http import REASON_HEADER
from tests.chaos.crowd import Member
from tests.chaos.schedule import Fault
from tests.chaos.verdict import Result, Verdict


@dataclass(slots=True, kw_only=True)
class Outcome:
    """What one fault did."""

    fault: Fault
    victim: str = ""
    reached: bool = False  # the phase was seen, so that there was a fault
    results: Counter[str] = field(default_factory=Counter)  # of clients under way at the fault, path included
    later: Counter[str] = field(default_factory=Counter)  # of clients that came during it
    slowest_s: float = 0.0
    bound_s: float = 0.0
    given_back_s: float = 0.0
    resumed_s: float = 0.0
    quarantined_blocks: int = 0
    quarantine_s: float = 0.0
    beyond_share_s: float = 0.0  # for how long more blocks were in quarantine than their share of the pool
    reasons: Counter[str] = field(default_factory=Counter)  # of errors, and of answers that were not handed over
    problems: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        what = f"{self.fault}: {dict(self.results)}" if self.reached else f"{self.fault}: the phase was not seen"
        times = f"slowest {self.slowest_s:.1f} of {self.bound_s:.1f} s, resumed after {self.resumed_s:.1f} s"
        return "\n    ".join([what, times, *self.problems])

    def count(self, verdict: Verdict, member: Member, *, under_way: bool) -> None:
        """Note what one client got."""
        counter = self.results if under_way else self.later
        how = f" ({verdict.path})" if verdict.result is Result.EXACT else ""
        counter[f"{verdict.result}{how}"] += 1
        if verdict.result is Result.ERROR:
            self.reasons[verdict.detail] += 1
        elif reason := member.exchange.headers.get(REASON_HEADER):
            self.reasons[reason] += 1


def problem_of(member: Member, verdict: Verdict, *, may_be_cut: bool) -> list[str]:
    """Name what a client got, if it is neither the exact answer nor a typed error."""
    if verdict.result in (Result.EXACT, Result.ERROR, Result.LEFT) or (may_be_cut and verdict.result is Result.CUT):
        return []
    return [f"{member.exchange.tag}: {verdict} (path {verdict.path or 'unknown'})"]
