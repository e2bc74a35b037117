"""Long prompts take turns with everything else."""

import asyncio
from itertools import pairwise

from baton.proxy.request.long_bodies import LONG_BYTES, LongBodies


async def test_something_else_runs_between_two_long_bodies() -> None:
    """All bodies are there at once; each other task has its turn before the next long one."""
    bodies, order = LongBodies(), list[str]()

    async def long(number: int) -> None:
        await bodies.wait(LONG_BYTES)
        order.append(str(number))

    async def others() -> None:
        while len(order) < 8:
            order.append("other")
            await asyncio.sleep(0)

    await asyncio.gather(*map(long, range(3)), others())

    places = [order.index(str(number)) for number in range(3)]
    assert places == sorted(places)
    assert all("other" in order[one:other] for one, other in pairwise(places))


async def test_short_bodies_do_not_wait() -> None:
    bodies, order = LongBodies(), list[int]()

    async def short(number: int) -> None:
        await bodies.wait(LONG_BYTES - 1)
        order.append(number)

    first = asyncio.create_task(bodies.wait(LONG_BYTES))
    await asyncio.gather(*map(short, range(3)))
    assert order == [0, 1, 2]
    await first


async def test_a_client_that_leaves_does_not_keep_the_turn() -> None:
    bodies = LongBodies()
    waiting = [asyncio.create_task(bodies.wait(LONG_BYTES)) for _ in range(3)]
    await asyncio.sleep(0)
    waiting[1].cancel()

    async with asyncio.timeout(5):
        await waiting[2]
