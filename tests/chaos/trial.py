"""One fault at one known moment, under load, and everything that must hold afterwards.

Load, wait until some request is seen in the phase, strike the server that it is on, go on asking for a while, heal. Then:
every client has the exact answer or a typed error within its bound; no node holds a block; hand-over works again
through what had failed; and no other process has ended.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NamedTuple

from baton.contracts.http import DISAGGREGATED
from tests.chaos.actors import Actor, ActorError
from tests.chaos.audit import audit, damages_of
from tests.chaos.bounds import Bounds
from tests.chaos.cluster import Cluster
from tests.chaos.crowd import Crowd, Member, in_flight_at
from tests.chaos.ledger import NodeState, Watch, settle
from tests.chaos.orders import Orders
from tests.chaos.outcome import Outcome, problem_of
from tests.chaos.phases import Phase, View, phase_of
from tests.chaos.schedule import Fault, Kill
from tests.chaos.workload import Reference

AT_ONCE: Final = 28
ASKS_ON_S: Final = 1.0  # after the fault
PHASE_WITHIN_S: Final = 20.0  # of load, until some request was seen in the phase
FULL_AFTER_S: Final = (
    5.0  # a crowd is too many for the decode nodes: prompts are computed before there is room, and pushed at once
)
PATIENCE_S: Final = 5.0  # beyond the bound, before a client is called hanging


class Moment(NamedTuple):
    """A request in the wanted phase, and the server to strike."""

    member: Member | None
    victim: str


class Trial:
    """Runs faults on one cluster, one after the other."""

    def __init__(
        self,
        *,
        cluster: Cluster,
        references: Sequence[Reference],
        watch: Watch,
        bounds: Bounds,
        seed: int,
        orders: Orders,
    ) -> None:
        self._cluster = cluster
        self._references = references
        self._watch = watch
        self._bounds = bounds
        self._orders = orders
        self._rng = random.Random(f"{seed}/trial")

    async def run(self, fault: Fault, actor_for: Callable[[str], Actor]) -> Outcome:
        """Bring about one fault on its victim."""
        outcome = Outcome(fault=fault, bound_s=self._bounds.answer_s(fault))
        self._orders.start()
        self._watch.quarantine.forget()
        deadline = time.monotonic() + self._bounds.patience * PHASE_WITHIN_S
        while (moment := await self._moment(crowd := self._crowd(), fault.victim, fault.phase)) is None:
            await crowd.finish(self._bounds.request_timeout_s)
            self._judge(outcome, crowd, time.monotonic())
            if time.monotonic() > deadline:
                await self._orders.stop()
                return outcome
        outcome.reached, outcome.victim = True, moment.victim
        others = self._others(moment.victim)
        actor = actor_for(moment.victim)
        await actor.strike()
        struck_s = time.monotonic()
        healed = asyncio.create_task(_heal(actor, fault.lasts_s, outcome))
        await self._go_on(crowd, moment)
        longest_s = max(outcome.bound_s, self._bounds.later_s(fault), fault.lasts_s)
        await crowd.finish(longest_s + PATIENCE_S)
        await self._orders.stop()
        self._judge(outcome, crowd, struck_s)
        await self._given_back(outcome, crowd, struck_s)
        await healed
        outcome.problems += await self._orders.restore()
        await self._resume(outcome, fault.victim)
        await self._all_given_back(outcome)
        self._note_quarantine(outcome)
        outcome.problems += [f"{name} was not touched, but has ended" for name in others if not self._runs(name)]
        return outcome

    # --- before -------------------------------------------------------------------------------------------------

    def _crowd(self) -> Crowd:
        return Crowd(url=self._cluster.url, model=self._cluster.stack.model, references=self._references, rng=self._rng)

    async def _moment(self, crowd: Crowd, role: str, phase: Phase) -> Moment | None:
        """Start a crowd and wait until some request is in the phase; None: decode nodes are full, and their prompts wait."""
        crowd.start(AT_ONCE)
        await asyncio.sleep(0.5)  # let the queues fill
        if phase is Phase.ARRIVING:
            member = crowd.draw()
            task = asyncio.create_task(crowd.send(member, half=True))
            crowd.also_wait_for(task)
            await asyncio.sleep(0.1)
            return Moment(member, self._any_server(role))
        deadline = time.monotonic() + FULL_AFTER_S
        while time.monotonic() < deadline:
            picture = await self._watch.next()
            live = crowd.live()
            for tag, view in picture.views.items():
                found = live.get(tag)
                if found and self._is_in(phase, view, found) and (name := _victim(role, view)):
                    return Moment(found, name)
        return None

    def _is_in(self, phase: Phase, view: View, member: Member) -> bool:
        if phase is Phase.FIRST_TOKEN:
            return member.exchange.events == 1
        if phase is Phase.DECODING:
            return member.is_decoding
        return phase_of(view) is phase

    def _any_server(self, role: str) -> str:
        servers = {"prefill": self._cluster.prefill, "decode": self._cluster.decode}.get(role)
        return self._rng.choice(servers).name if servers else role

    def _others(self, victim: str) -> list[str]:
        return [server.name for server in self._cluster.servers if server.name != victim]

    def _runs(self, name: str) -> bool:
        child = self._cluster.named(name).child
        return child is not None and child.poll() is None

    # --- after --------------------------------------------------------------------------------------------------

    async def _go_on(self, crowd: Crowd, moment: Moment) -> None:
        await asyncio.sleep(ASKS_ON_S)
        if moment.member is not None:
            moment.member.exchange.finish_sending()

    def _judge(self, outcome: Outcome, crowd: Crowd, struck_s: float) -> None:
        under_way = set(map(id, in_flight_at(crowd.members, struck_s)))
        for member in crowd.members:
            if not member.exchange.began_s:
                continue  # drawn, but not sent
            verdict = member.verdict()
            outcome.problems += problem_of(member, verdict, may_be_cut=_proxy_was_killed(outcome.fault))
            if member.exchange.ended_s <= struck_s:
                continue
            outcome.count(verdict, member, under_way=id(member) in under_way)
            bound_s = outcome.bound_s if id(member) in under_way else self._bounds.later_s(outcome.fault)
            waited_s = member.exchange.ended_s - max(struck_s, member.exchange.began_s)
            if id(member) in under_way:
                outcome.slowest_s = max(outcome.slowest_s, waited_s)
            if waited_s > bound_s:
                late = f"{member.exchange.tag}: {verdict}, after {waited_s:.1f} s, bound {bound_s:.1f} s"
                outcome.problems.append(late)

    async def _given_back(self, outcome: Outcome, crowd: Crowd, struck_s: float) -> None:
        """Nodes that were not struck have nothing left in time, whether or not the fault has ended."""
        names = [server.name for server in self._cluster.nodes if server.name != outcome.victim]
        last_s = max([struck_s, *(member.exchange.ended_s for member in crowd.members)])
        settled = await settle(self._watch, names, last_s, self._bounds.given_back_s(outcome.fault))
        outcome.given_back_s = max(settled.took_s.values(), default=0.0)
        outcome.problems += [f"{name} keeps blocks: {state}" for name, state in settled.left.items()]

    def _note_quarantine(self, outcome: Outcome) -> None:
        seen, bounds = self._watch.quarantine, self._bounds
        outcome.quarantined_blocks = seen.most_blocks
        outcome.quarantine_s, outcome.beyond_share_s = seen.any.longest_s, seen.beyond.longest_s
        if outcome.quarantine_s > bounds.quarantine_s:
            outcome.problems.append(f"blocks were in quarantine for {outcome.quarantine_s:.1f} s")
        if outcome.beyond_share_s > bounds.beyond_share_s:
            outcome.problems.append(f"more blocks than allowed were in quarantine for {outcome.beyond_share_s:.1f} s")

    async def _resume(self, outcome: Outcome, role: str) -> None:
        """Ask until an answer has used what had failed, without anything else being restarted."""
        begun_s = time.monotonic()
        crowd = self._crowd()
        before = self._progress(outcome.victim, (await self._watch.take()).nodes)
        while time.monotonic() - begun_s < self._bounds.resumed_s:
            members = [crowd.draw() for _ in range(4)]
            await _bounded(asyncio.gather(*map(crowd.send, members)), self._bounds.resumed_s, crowd)
            verdicts = [member.verdict() for member in members]
            outcome.problems += [
                text for pair in zip(members, verdicts, strict=True) for text in problem_of(*pair, may_be_cut=False)
            ]
            handed_over = any(verdict.path == DISAGGREGATED for verdict in verdicts)
            used = self._progress(outcome.victim, (await self._watch.take()).nodes) > before
            if handed_over and (used or role in ("proxy", "link")):
                outcome.resumed_s = time.monotonic() - begun_s
                return
        outcome.problems.append(f"no hand-over through {outcome.victim} within {self._bounds.resumed_s} s")

    @staticmethod
    def _progress(victim: str, nodes: dict[str, NodeState]) -> int:
        totals = nodes[victim].totals if victim in nodes else {}
        return totals.get("committed", 0) + totals.get("loaded", 0)

    async def _all_given_back(self, outcome: Outcome) -> None:
        names = [server.name for server in self._cluster.nodes]
        settled = await settle(self._watch, names, time.monotonic(), self._bounds.given_back_s(outcome.fault))
        outcome.problems += [f"in the end {name} keeps blocks: {state}" for name, state in settled.left.items()]
        nodes = (await self._watch.take()).nodes
        outcome.problems += [*await audit(self._cluster.nodes), *damages_of(nodes)]


def _victim(role: str, view: View) -> str:
    """The server of that role that a request is on; "" if it is on none."""
    if role == "prefill":
        return view.prefill.node if view.prefill else ""
    if role == "decode":
        return view.decode.node if view.decode else ""
    return role


def _proxy_was_killed(fault: Fault) -> bool:
    return isinstance(fault, Kill) and fault.victim == "proxy"


async def _heal(actor: Actor, after_s: float, outcome: Outcome) -> None:
    await asyncio.sleep(after_s)
    try:
        await actor.heal()
    except ActorError as exc:
        outcome.problems.append(str(exc))


async def _bounded(work: Awaitable[object], within_s: float, crowd: Crowd) -> None:
    try:
        async with asyncio.timeout(within_s):
            await work
    except TimeoutError:
        for member in crowd.live().values():
            member.exchange.give_up()
