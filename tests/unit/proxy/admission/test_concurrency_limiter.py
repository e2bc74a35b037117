"""Who begins, who waits, who is told to come again."""

import asyncio
import random

import pytest

from baton.proxy.admission.concurrency_limiter import ConcurrencyLimiter, Ticket
from baton.proxy.errors import OverloadedError, ProxyError, Refusal, TooManyRequestsError
from tests.support.clock import Clock

pytestmark = pytest.mark.timeout(10)  # a request that is let into the queue by mistake would wait for ever


def make(clock: Clock | None = None, *, inside: int = 2, waiting: int = 3, each: int = 3) -> ConcurrencyLimiter:
    return ConcurrencyLimiter(
        max_inside=inside, max_waiting=waiting, max_waiting_per_tenant=each, clock=clock or Clock()
    )


class Visitor:
    def __init__(self, gate: ConcurrencyLimiter, tenant: str = "a", **ticket: float) -> None:
        self.go = asyncio.Event()
        self.began = False
        self.task = asyncio.create_task(self._visit(gate, Ticket(tenant, **ticket)))  # type: ignore[arg-type]

    async def _visit(self, gate: ConcurrencyLimiter, ticket: Ticket) -> None:
        async with gate.inside_for(ticket):
            self.began = True
            await self.go.wait()

    async def leave(self) -> None:
        self.go.set()
        await self.task


async def leave_one_by_one(visitors: list[Visitor], clock: Clock) -> None:
    """Ten seconds apart."""
    for visitor in visitors:
        clock.now_s += 10
        await visitor.leave()
        await turn()


async def turn() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_who_would_wait_beyond_its_deadline_is_told_at_once() -> None:
    """Requests ended 10 s apart: the second in the queue will wait for 20 s, and who has 15 s is refused."""
    clock = Clock()
    gate = make(clock, inside=1, waiting=9, each=9)
    visitors = [Visitor(gate) for _ in range(4)]
    await turn()
    await leave_one_by_one(visitors[:3], clock)
    waiting = Visitor(gate)
    await turn()

    assert gate.expected_wait_s() == pytest.approx(20)
    with pytest.raises(OverloadedError, match="about 20 s") as refused:
        async with gate.inside_for(Ticket("a", patience_s=15)):
            pass
    assert refused.value.headers == ((b"retry-after", b"20"),)
    patient = Visitor(gate, patience_s=25)
    await turn()
    assert not patient.task.done()
    for visitor in (visitors[3], waiting, patient):
        await visitor.leave()


async def test_a_request_cancelled_in_the_moment_it_was_let_in_hands_its_place_on() -> None:
    """Between the place being handed to it and its next step; it never began."""
    gate = make(inside=1)
    held = gate.inside_for(Ticket("a"))
    await held.__aenter__()
    first, second = Visitor(gate), Visitor(gate)
    await turn()

    await held.__aexit__(None, None, None)  # the place is `first`'s, which has not run yet
    first.task.cancel()
    await turn()

    assert (first.began, second.began, gate.inside) == (False, True, 1)
    await second.leave()
    assert (gate.inside, gate.waiting) == (0, 0)


async def test_no_place_is_lost_and_none_is_given_twice() -> None:
    """2,000 random visits, a third of them cancelled anywhere: never more inside than there are places, in the end none."""
    rng = random.Random(5)
    gate = make(inside=5, waiting=40, each=20)
    most = refused = 0

    async def visit(tenant: str, ticks: int) -> None:
        nonlocal most, refused
        try:
            async with gate.inside_for(Ticket(tenant, rng.randrange(3), rng.random())):
                most = max(most, gate.inside)
                for _ in range(ticks):
                    await asyncio.sleep(0)
        except ProxyError:
            refused += 1

    tasks = []
    for _ in range(2000):
        tasks.append(asyncio.create_task(visit(f"{rng.randrange(4)}", rng.randrange(12))))
        if rng.random() < 0.34:
            rng.choice(tasks[-20:]).cancel()
        if rng.random() < 0.5:
            await asyncio.sleep(0)
    await asyncio.gather(*tasks, return_exceptions=True)

    assert (most, gate.inside, gate.waiting) == (5, 0, 0)
    assert 0 < refused < 2000


async def test_a_tenant_is_not_refused_for_the_queue_of_another() -> None:
    """Its request would be one of the next; only a request that waits behind all the others would wait too long."""
    clock = Clock()
    gate = make(clock, inside=1, waiting=99, each=99)
    visitors = [Visitor(gate, "many") for _ in range(12)]
    await turn()
    await leave_one_by_one(visitors[:3], clock)
    with pytest.raises(OverloadedError, match="beyond its deadline"):
        async with gate.inside_for(Ticket("many", patience_s=45)):
            pass
    few = Visitor(gate, "few", patience_s=45)
    urgent = Visitor(gate, "many", priority=-1, patience_s=45)
    await turn()

    assert not few.task.done()
    assert not urgent.task.done()
    for visitor in (*visitors[3:], few, urgent):
        visitor.go.set()
    await asyncio.gather(*(visitor.task for visitor in (*visitors[3:], few, urgent)))


async def test_a_request_that_waits_until_too_little_time_is_left_is_told_to_come_again() -> None:
    gate = make(inside=1)
    inside, hasty, patient = Visitor(gate), Visitor(gate, patience_s=0.3), Visitor(gate)
    await turn()
    with pytest.raises(OverloadedError) as refused:
        await hasty.task
    assert gate.waiting == 1
    await inside.leave()
    await turn()

    assert (refused.value.status, refused.value.reason) == (503, Refusal.WAITED)
    assert refused.value.headers == ((b"retry-after", b"1"),)
    assert (hasty.began, patient.began) == (False, True)
    await patient.leave()
    assert (gate.inside, gate.waiting) == (0, 0)


@pytest.mark.parametrize(
    ("each", "error", "reason"), [(9, OverloadedError, Refusal.QUEUE), (2, TooManyRequestsError, Refusal.TENANT)]
)
async def test_as_many_as_may_wait_do(each: int, error: type[OverloadedError], reason: Refusal) -> None:
    gate = make(inside=1, waiting=2 if each == 9 else 9, each=each)
    visitors = [Visitor(gate) for _ in range(3)]
    await turn()
    with pytest.raises(error) as refused:
        async with gate.inside_for(Ticket("a")):
            pass

    assert gate.waiting == 2
    assert (refused.value.reason, refused.value.headers) == (reason, ((b"retry-after", b"1"),))
    for visitor in visitors:
        await visitor.leave()


async def test_the_pace_is_measured_from_when_the_first_request_waits() -> None:
    clock = Clock()
    gate = make(clock, inside=1)
    clock.now_s += 1000  # without a request
    visitors = [Visitor(gate) for _ in range(2)]
    await turn()
    clock.now_s += 10
    await visitors[0].leave()
    await visitors[1].leave()

    assert gate.expected_wait_s() == 10


async def test_every_wait_is_reported_once() -> None:
    """Zero for a request that need not wait, nothing for a request that is not let in."""
    clock, waits = Clock(), list[float]()
    gate = ConcurrencyLimiter(max_inside=1, max_waiting=2, max_waiting_per_tenant=2, clock=clock, waited=waits.append)
    visitors = [Visitor(gate) for _ in range(3)]
    await turn()
    visitors[2].task.cancel()
    clock.now_s += 7
    await visitors[0].leave()
    await visitors[1].leave()

    assert waits == [0, 7]


async def test_a_pace_that_was_slow_once_does_not_refuse_for_ever() -> None:
    """Requests ended 100 s apart, then 0.1 s: one that would be the first to wait finds that out, also if it has 30 s."""
    clock = Clock()
    gate = make(clock, inside=1, waiting=9, each=9)
    for visitor in [Visitor(gate) for _ in range(4)]:
        await turn()
        clock.now_s += 100
        await visitor.leave()
    for _ in range(40):
        inside, waiting = Visitor(gate, patience_s=30), Visitor(gate, patience_s=30)
        await turn()
        clock.now_s += 0.1
        await inside.leave()
        await waiting.leave()

    assert gate.expected_wait_s() < 30
    assert gate.inside == 0
