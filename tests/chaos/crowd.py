"""Clients that keep a cluster busy: each asks again as soon as it was answered."""

import asyncio
import itertools
import random
import time
from collections.abc import Sequence
from contextlib import suppress

from tests.chaos.exchange import Ending, Exchange
from tests.chaos.ledger import TAG
from tests.chaos.verdict import Verdict, judge
from tests.chaos.workload import Reference, body_of

_NUMBERS = itertools.count(1_000_000)  # beyond those of errands
LEAVE = 0.15  # share of clients that leave before long
STAY_S = 2.0  # at most
PAUSE_S = 0.1  # after an answer that was an error, so that an outage is not hammered at


class Member:
    """One request of the crowd."""

    def __init__(self, model: str, reference: Reference, max_tokens: int, *, stream: bool) -> None:
        self.reference = reference
        self.max_tokens = max_tokens
        self.stream = stream
        self.exchange = Exchange(f"{TAG}-{next(_NUMBERS)}", body_of(model, reference.prompt, max_tokens, stream=stream))

    def verdict(self) -> Verdict:
        """Judge it; for one that has ended."""
        return judge(self.exchange, self.reference, self.max_tokens, stream=self.stream)

    def leave(self) -> None:
        """Close the connection, if the answer has not ended."""
        if self.exchange.ending is Ending.OPEN:
            self.exchange.leave(reset=self.max_tokens % 2 == 0)

    @property
    def is_decoding(self) -> bool:
        """Its client has some tokens, but by far not all."""
        return self.stream and 1 <= self.exchange.events < self.max_tokens - 4 and self.exchange.ending is Ending.OPEN


class Crowd:
    """`at_once` clients."""

    def __init__(self, *, url: str, model: str, references: Sequence[Reference], rng: random.Random) -> None:
        self.members: list[Member] = []  # of all requests so far
        self._url = url
        self._model = model
        self._references = references
        self._rng = rng
        self._tasks: list[asyncio.Task[None]] = []
        self._issuing = False

    def start(self, at_once: int) -> None:
        self._issuing = True
        self._tasks = [asyncio.create_task(self._ask_on()) for _ in range(at_once)]

    def also_wait_for(self, task: asyncio.Task[None]) -> None:
        """`finish` waits for it as well."""
        self._tasks.append(task)

    def draw(self, *, stream: bool | None = None) -> Member:
        """Make a request without sending it."""
        reference = self._rng.choice(self._references)
        max_tokens = self._rng.randint(len(reference.tokens) // 3, len(reference.tokens))
        stream = self._rng.random() < 0.6 if stream is None else stream
        member = Member(self._model, reference, max_tokens, stream=stream)
        self.members.append(member)
        return member

    def live(self) -> dict[str, Member]:
        """Requests under way, by tag."""
        return {m.exchange.tag: m for m in self.members if m.exchange.ending is Ending.OPEN and m.exchange.began_s}

    async def send(self, member: Member, *, half: bool = False) -> None:
        """Send one request and read its answer."""
        await member.exchange.run(self._url, half=half)

    def stop_asking(self) -> None:
        """Begin no further request."""
        self._issuing = False

    async def finish(self, within_s: float) -> None:
        """Wait for the answers under way; a client that still waits then is given up, as hanging."""
        self.stop_asking()
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await asyncio.gather(*self._tasks)
        for member in self.live().values():
            member.exchange.give_up()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _ask_on(self) -> None:
        while self._issuing:
            member = self.draw()
            if self._rng.random() < LEAVE:
                asyncio.get_running_loop().call_later(self._rng.uniform(0.0, STAY_S), member.leave)
            await self.send(member)
            if member.exchange.status != 200:
                await asyncio.sleep(PAUSE_S)


def in_flight_at(members: Sequence[Member], moment_s: float) -> list[Member]:
    """Return the requests that had begun and had not ended at a moment."""
    return [
        member
        for member in members
        if 0 < member.exchange.began_s <= moment_s and (member.exchange.ended_s or time.monotonic()) > moment_s
    ]
