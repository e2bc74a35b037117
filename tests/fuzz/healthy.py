"""Transfers between two honest ranks, two at a time, each checked to arrive with the right bytes."""

import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from baton.kv_connector.handoff.metadata import DecodeStep, PrefillStep
from tests.support.ranks import BLOCK_TOKENS, Ranks

LANES = ((1, 2, 3), (4, 5, 6))  # blocks of a transfer, on both ranks
HONEST = "good-"  # how the names of honest transfers begin
SLOW_S = 60.0  # a transfer that takes longer counts as lost


@dataclass
class Transfer:
    """One request that is under way."""

    name: str
    blocks: dict[int, int]  # D's block → P's
    began: float = field(default_factory=time.monotonic)


class Healthy:
    """Both schedulers of the honest requests. `step` never waits."""

    def __init__(self, ranks: Ranks, random_: random.Random) -> None:
        self.arrived = 0
        self.cancelled = 0
        self.problems: list[str] = []
        self.slowest_s = 0.0
        self._ranks = ranks
        self._random = random_
        self._lanes = [self._lane(blocks) for blocks in LANES]
        self._current: dict[str, Transfer] = {}
        self._finished: set[str] = set()
        self._failed: dict[str, str] = {}
        self._closed: set[str] = set()

    def step(self) -> None:
        """Take in what the ranks report, and go on with each transfer as far as it can."""
        if report := self._ranks.decode.take_report():
            for request, why in report.failed.items():
                if request.startswith(f"d-{HONEST}"):
                    self._failed.setdefault(request, why)  # the first reason is the cause
            self._closed |= {request for request in report.closed if request.startswith(f"d-{HONEST}")}
        finished, _ = self._ranks.decode.take_results()  # after the report: what is closed has finished
        self._finished |= {request for request in finished if request.startswith(f"d-{HONEST}")}
        for lane in self._lanes:
            next(lane)

    def known_to_both(self) -> list[str]:
        """Transfers that P knows to be for the honest decode rank: others may now learn of them as well."""
        with self._ranks.prefill._lock:
            outgoing = self._ranks.prefill._producer.transfers
            return [name for name in self._current if name in outgoing and outgoing[name].decode]

    def is_overdue(self) -> bool:
        """Whether a transfer takes so long that it must have been lost."""
        return any(time.monotonic() - transfer.began > SLOW_S for transfer in self._current.values())

    def _lane(self, blocks: tuple[int, ...]) -> Iterator[None]:
        """One transfer after the other, over the same blocks."""
        while True:
            name = f"{HONEST}{self._random.getrandbits(128):032x}"  # an id must not be guessed from another
            theirs, mine = list(blocks), self._random.sample(blocks, len(blocks))
            transfer = self._current[name] = Transfer(name, dict(zip(mine, theirs, strict=True)))
            tokens = self._random.randint(2 * BLOCK_TOKENS + 1, 3 * BLOCK_TOKENS)
            yield from self._run(name, tokens, theirs, mine)
            self._check(transfer)
            for seen in (self._finished, self._closed):
                seen.discard(f"d-{name}")
            self._failed.pop(f"d-{name}", None)
            del self._current[name]

    def _run(self, name: str, tokens: int, theirs: list[int], mine: list[int]) -> Iterator[None]:
        ranks, early, chunked = self._ranks, self._random.random() < 0.5, self._random.random() < 0.5
        ranks.watch(name)
        while name not in self.known_to_both() and f"d-{name}" not in self._failed:
            yield
        if early:
            ranks.reserve(name, tokens, mine)
            yield
        if chunked:
            ranks.compute(name, tokens=tokens, blocks=theirs[:1], ready=1)
            yield
            ranks.compute(name, tokens=tokens, blocks=theirs[1:], ready=3, first=False)
        else:
            ranks.compute(name, tokens=tokens, blocks=theirs, ready=3)
        ranks.prefill.begin_step(PrefillStep(holds=[f"p-{name}"]))
        if not early:
            yield
            ranks.reserve(name, tokens, mine)
        if self._random.random() < 0.05:
            ranks.decode.begin_step(DecodeStep(cancelled=[f"d-{name}"]))
        while f"d-{name}" not in self._closed:
            yield

    def _check(self, transfer: Transfer) -> None:
        request = f"d-{transfer.name}"
        reason = self._failed.get(request, "")
        self.slowest_s = max(self.slowest_s, time.monotonic() - transfer.began)
        if reason == "cancelled":
            self.cancelled += 1
        elif reason or request not in self._finished:
            self.problems.append(f"{transfer.name}: {reason or 'it was closed but never finished'}")
        elif not self._ranks.arrived(transfer.blocks):
            self.problems.append(f"{transfer.name}: its bytes are wrong")
        else:
            self.arrived += 1
