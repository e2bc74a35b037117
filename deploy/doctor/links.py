"""Judges what was measured between prefill and decode nodes, and says who is measured when. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from baton.contracts.probe import Pushed, Reached
from baton.deploy.doctor.catalogue import Finding
from baton.deploy.doctor.fit import Known, name_of_pair

BITS: Final = 8
MEGA: Final = 1e6
FAR_BELOW: Final = 0.25  # of the best pair's bandwidth


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What a link should be worth."""

    min_mbit_s: float
    max_latency_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """What was tried between two nodes. What is None was not."""

    prefill: Known
    decode: Known
    control: Reached | None = None  # D to P's control addresses; the first that failed, if any did
    data: Reached | None = None  # P to D's transfer engines that serve; likewise
    push: Pushed | None = None
    problem: str = ""  # why a push could not even be tried
    idle_s: float = 0.0

    @property
    def where(self) -> str:
        return name_of_pair(self.prefill, self.decode)

    def finding(self, code: str, what: str) -> Finding:
        return Finding(code=code, where=self.where, what=what)

    @property
    def mbit_s(self) -> float | None:
        found = self.push.bytes_per_s if self.push else None
        return None if found is None else found * BITS / MEGA

    @property
    def latency_ms(self) -> float | None:
        found = self.push.latency_s if self.push else None
        return None if found is None else found * 1000


def diagnose(tried: Sequence[Tried], wanted: Wanted) -> Iterator[Finding]:
    best = max((each.mbit_s or 0.0 for each in tried), default=0.0)
    for each in tried:
        yield from _diagnose_control(each)
        yield from _diagnose_data(each)
        yield from _diagnose_worth(each, wanted, best)


def rounds(prefill: Sequence[Known], decode: Sequence[Known]) -> list[list[tuple[Known, Known]]]:
    """Pair each prefill node with each decode node, in rounds in which no node is busy twice."""
    count = max(len(prefill), len(decode)) if prefill and decode else 0
    turns = [
        [(prefill[at], decode[(at + turn) % count]) for at in range(len(prefill)) if (at + turn) % count < len(decode)]
        for turn in range(count)
    ]
    return [turn for turn in turns if turn]


def _diagnose_control(tried: Tried) -> Iterator[Finding]:
    if tried.control is not None and tried.control.problem:
        code = "control-secret" if tried.control.refused else "control-unreachable"
        yield tried.finding(code, tried.control.problem)


def _diagnose_data(tried: Tried) -> Iterator[Finding]:
    push = tried.push
    if push is not None and push.problem and push.bytes_per_s is not None:
        yield tried.finding("idle-gap", f"after {tried.idle_s:g} s without a byte, {push.problem}")
    elif push is not None and push.problem:
        yield tried.finding("data-unreachable", push.problem)
    elif tried.data is not None and tried.data.problem:
        yield tried.finding("data-unreachable", tried.data.problem)
    elif tried.problem:
        yield tried.finding("probe-failed", tried.problem)


def _diagnose_worth(tried: Tried, wanted: Wanted, best: float) -> Iterator[Finding]:
    mbit_s, latency_ms = tried.mbit_s, tried.latency_ms
    if mbit_s is not None and mbit_s < wanted.min_mbit_s:
        yield tried.finding("slow-link", f"KV travels at {mbit_s:.0f} Mbit/s, {wanted.min_mbit_s:g} are wanted")
    elif mbit_s is not None and mbit_s < FAR_BELOW * best:
        yield tried.finding("slow-link", f"KV travels at {mbit_s:.0f} Mbit/s, and at {best:.0f} between the best pair")
    if latency_ms is not None and latency_ms > wanted.max_latency_ms:
        yield tried.finding(
            "latency", f"a push of a few bytes takes {latency_ms:.1f} ms, {wanted.max_latency_ms:g} are wanted"
        )
