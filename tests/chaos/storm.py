"""A storm of clients that leave, each at a moment of its request's life that is known; the others must be answered right.

It comes in waves. After each, every block must be free again, counted from the moment the last client was gone.
"""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Final

from tests.chaos.audit import audit, damages_of, verified_by
from tests.chaos.bounds import Bounds
from tests.chaos.exchange import Ending, Exchange
from tests.chaos.ledger import TAG, Picture, Settled, Watch, settle
from tests.chaos.phases import BY_LEDGER, Phase, phase_of
from tests.chaos.schedule import Errand, wave
from tests.chaos.tally import Tally
from tests.chaos.verdict import Result, Verdict, judge
from tests.chaos.workload import Reference, body_of

GIVE_UP_S: Final = 5.0  # after the proxy's request time-out
SHARES: Final = {  # of the clients that leave; what is rare is worth waiting for, up to a point
    Phase.ARRIVING: 0.15,
    Phase.QUEUED: 0.15,
    Phase.WAITING: 0.15,
    Phase.BETWEEN_CHUNKS: 0.12,
    Phase.BETWEEN_LAYERS: 0.12,
    Phase.FINISHED: 0.07,
    Phase.FIRST_TOKEN: 0.10,
    Phase.DECODING: 0.14,
}
WAVE_CLIENTS: Final = 200
STARTS_PER_S: Final = 200.0
LAST_LOOKS: Final = 10  # after a wave, when every node is empty
ARRIVING_LASTS_S: Final = 0.1  # how long a client at most waits with half of its body sent


@dataclass(slots=True, eq=False)
class Caller:
    """One errand under way."""

    errand: Errand
    exchange: Exchange
    left_in: Phase | None = None
    transfer_id: str = ""  # as far as it was seen


class Storm:
    """Sends waves of clients to one server (the proxy, or a plain server for comparison)."""

    def __init__(
        self,
        *,
        url: str,
        model: str,
        references: Sequence[Reference],
        watch: Watch | None,
        bounds: Bounds,
    ) -> None:
        """Without a `watch` phases are not verified: clients leave after a while, as `errand.patience` says."""
        self._url = url
        self._model = model
        self._references = references
        self._watch = watch
        self._bounds = bounds
        self._live: dict[str, Caller] = {}
        self._departed: list[Caller] = []  # whose transfer some node may still know of
        self.tally = Tally()

    async def run(
        self, *, seed: int, aborts: int, seconds: float, at_once: int, phases: tuple[Phase, ...], at_least: int = 0
    ) -> Tally:
        """Send waves until `aborts` clients have left, in shares over the phases, or `seconds` have passed.

        Of each phase `at_least` so many leave, however long that takes.
        """
        begun = time.monotonic()
        longest = len(self._references[0].tokens)
        wanted = {
            phase: math.ceil(SHARES[phase] * aborts / sum(SHARES[chosen] for chosen in phases)) for phase in phases
        }
        while time.monotonic() - begun < seconds or min(self.tally.left[phase] for phase in phases) < at_least:
            missing = {phase: max(0, count - self.tally.left[phase]) for phase, count in wanted.items()}
            if not any(missing.values()):
                break
            size = min(
                WAVE_CLIENTS, max(2 * at_once, 2 * sum(missing.values()))
            )  # a thin one would not fill the queues
            errands = wave(
                seed=seed,
                number=self.tally.waves,
                size=size,
                missing=missing,
                prompts=len(self._references),
                max_tokens=longest,
                span_s=size / STARTS_PER_S,
            )
            await self._wave(errands, at_once)
            self.tally.waves += 1
            rare = {str(phase): self.tally.left[phase] for phase in phases if self.tally.left[phase] < at_least}
            print(
                f"wave {self.tally.waves}: {self.tally.aborts} aborts, {self.tally.results}, few so far: {rare}, problems: {self.tally.problems}",
                flush=True,
            )
        self.tally.took_s = time.monotonic() - begun
        return self.tally

    async def _wave(self, errands: Sequence[Errand], at_once: int) -> None:
        gate = asyncio.Semaphore(at_once)
        async with self._looking():
            callers = await asyncio.gather(*(self._call(errand, gate) for errand in errands))
            last = max(caller.exchange.ended_s for caller in callers)
            if self._watch is not None:
                names = [server.name for server in self._watch.servers]
                self._note_settled(await settle(self._watch, names, last, 5 * self._bounds.settled_s))
                await self._audit(self._watch)
        for caller in self._departed:
            self.tally.problems.append(f"{caller.exchange.tag}: left {caller.left_in}, its transfer was never closed")
        self._departed.clear()
        for caller in callers:
            self._note(caller)

    async def _audit(self, watch: Watch) -> None:
        nodes = (await watch.take()).nodes
        self.tally.problems += [*await audit(watch.servers), *damages_of(nodes)]
        self.tally.verified = verified_by(nodes)

    @asynccontextmanager
    async def _looking(self) -> AsyncIterator[None]:
        """Look at every picture of the nodes for as long as the block lasts, and at some after it if need be."""
        if self._watch is None:
            yield
            return
        task = asyncio.create_task(self._look_on(self._watch))
        try:
            yield
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        for _ in range(LAST_LOOKS):
            self._look(await self._watch.take())
            if not self._departed:
                break

    async def _call(self, errand: Errand, gate: asyncio.Semaphore) -> Caller:
        reference = self._references[errand.prompt]
        body = body_of(self._model, reference.prompt, errand.max_tokens, stream=errand.stream)
        caller = Caller(errand, Exchange(f"{TAG}-{errand.number}", body))
        await asyncio.sleep(errand.start_s)
        async with gate:
            self._live[caller.exchange.tag] = caller
            try:
                async with asyncio.timeout(self._bounds.request_timeout_s + GIVE_UP_S):
                    await self._talk(caller)
            except TimeoutError:
                caller.exchange.give_up()
            finally:
                del self._live[caller.exchange.tag]
        return caller

    async def _talk(self, caller: Caller) -> None:
        exchange, errand = caller.exchange, caller.errand
        talk = asyncio.create_task(exchange.run(self._url, half=errand.leaves is Phase.ARRIVING))
        try:
            if errand.leaves is Phase.ARRIVING:
                await asyncio.sleep(errand.patience * ARRIVING_LASTS_S)
                self._leave(caller, Phase.ARRIVING)
            elif errand.leaves in (Phase.FIRST_TOKEN, Phase.DECODING):
                await self._leave_while_decoding(caller, talk, errand.leaves)
            elif errand.leaves is not None and self._watch is None:
                await asyncio.sleep(errand.patience * 0.5)
                self._leave(caller, errand.leaves)
            await talk
        finally:
            talk.cancel()

    async def _leave_while_decoding(self, caller: Caller, talk: asyncio.Task[None], phase: Phase) -> None:
        more = int(caller.errand.patience * caller.errand.max_tokens * 0.7) if phase is Phase.DECODING else 0
        while not talk.done():
            if caller.exchange.events >= 1 + more:
                self._leave(caller, phase)
                return
            await asyncio.sleep(0.005)

    async def _look_on(self, watch: Watch) -> None:
        while True:
            self._look(await watch.next())

    def _look(self, picture: Picture) -> None:
        """A client seen in the phase it waits for leaves at once; where its transfer is gone, its blocks are back."""
        for tag, view in picture.views.items():
            caller = self._live.get(tag)
            if caller is None or caller.exchange.ending is not Ending.OPEN:
                continue
            caller.transfer_id = view.transfer_id
            leaves = caller.errand.leaves
            if leaves in BY_LEDGER and phase_of(view) is leaves:
                self._leave(caller, leaves)
        if self._watch is None or len(picture.nodes) < len(self._watch.servers):
            return  # one that did not answer may still know of it
        for caller in [caller for caller in self._departed if caller.transfer_id not in picture.open_ids]:
            took_s = picture.at_s - caller.exchange.ended_s
            if took_s > 0 and caller.left_in is not None:
                self._departed.remove(caller)
                self.tally.given_back_s.setdefault(caller.left_in, []).append(took_s)
                what = f"{caller.exchange.tag}, which left {caller.left_in}"
                self._note_late(what, took_s, self._bounds.idle_given_back_s)

    def _leave(self, caller: Caller, phase: Phase) -> None:
        if caller.exchange.ending is Ending.OPEN:
            caller.left_in = phase
            caller.exchange.leave(reset=caller.errand.reset)
            if caller.transfer_id:
                self._departed.append(caller)

    def _note(self, caller: Caller) -> None:
        errand, tally = caller.errand, self.tally
        verdict = judge(caller.exchange, self._references[errand.prompt], errand.max_tokens, stream=errand.stream)
        tally.results[verdict.result] += 1
        if caller.left_in is not None and verdict.result is Result.LEFT:
            tally.left[caller.left_in] += 1
        elif verdict.result is Result.EXACT:
            tally.paths[verdict.path] += 1
            tally.slowest_answer_s = max(tally.slowest_answer_s, caller.exchange.took_s)
        if verdict.result not in (Result.EXACT, Result.LEFT):
            tally.problems.append(describe(caller.exchange, verdict))
        elif verdict.result is Result.EXACT and caller.exchange.took_s > self._bounds.request_timeout_s:
            tally.problems.append(f"{caller.exchange.tag}: answered after {caller.exchange.took_s:.1f} s")

    def _note_settled(self, settled: Settled) -> None:
        self.tally.settled_s.append(max(settled.took_s.values(), default=0.0))
        self._note_late(f"wave {self.tally.waves}", self.tally.settled_s[-1], self._bounds.settled_s)
        if settled.left:
            self.tally.problems.append(f"wave {self.tally.waves}: blocks not given back: {settled.left}")

    def _note_late(self, what: str, took_s: float, bound_s: float) -> None:
        if took_s > bound_s:
            self.tally.problems.append(f"{what}: blocks given back after {took_s:.2f} s")


def describe(exchange: Exchange, verdict: Verdict) -> str:
    """One line on an exchange that did not go as it should."""
    return f"{exchange.tag}: {verdict} (path {verdict.path or 'unknown'}, after {exchange.took_s:.2f} s)"
