"""The loops without a server: an exchange that answers after a while, or never."""

import asyncio
import time
from collections import Counter
from typing import Any

import pytest

from baton.loadtest.client.exchange import Answered, Timing
from baton.loadtest.measures.record import CUT
from baton.loadtest.run.loops import Closed, Limits, Load, Loop, Open, Taken, warm_up
from baton.loadtest.traffic.made_up import MultiTurn, RandomPrompts
from baton.loadtest.traffic.script import Ask, Source
from tests.support.cluster import until_true
from tests.unit.loadtest.making import making
from tests.unit.loadtest.records import record


class FakeExchange:
    """Answers every request; `fails` are answered badly, `hangs` never."""

    def __init__(self) -> None:
        self.asks: list[tuple[int, Ask]] = []
        self.open = self.most_open = 0
        self.fails: set[int] = set()
        self.hangs: set[int] = set()
        self.takes_s = 0.001
        self.form = self

    def body(self, ask: Ask) -> bytes:
        return repr(ask.prompt).encode()

    async def send(self, index: int, ask: Ask, body: bytes, timing: Timing) -> Answered:
        assert body == self.body(ask)
        self.asks.append((index, ask))
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        began_s = time.perf_counter() - timing.stage_began_s
        try:
            await (asyncio.Event().wait() if index in self.hangs else asyncio.sleep(self.takes_s))
        finally:
            self.open -= 1
        error = CUT if index in self.fails else ""
        said: dict[str, Any] = {"index": index, "error": error, "turn": ask.turn, "conversation": ask.conversation}
        return Answered(record(began_s, due_s=timing.due_s, queued_s=timing.queued_s, **said), f"answer {index}")


async def run(exchange: FakeExchange, load: Load, source: Source | None = None, **limits: Any) -> Taken:
    asking: Any = exchange
    made = Limits(**{"requests": 100, "seconds": 10.0, **limits})
    async with asyncio.timeout(10):
        return await Loop(asking, source or RandomPrompts(making()), made).run(load, asyncio.Event())


async def test_so_many_users_send_so_many_requests() -> None:
    """Never more at once, and exactly as many in all."""
    exchange = FakeExchange()
    taken = await run(exchange, Closed(concurrency=3), requests=10)

    assert (exchange.most_open, len(taken.records), taken.begun) == (3, 10, 10)
    assert sorted(each.index for each in taken.records) == list(range(10))
    assert len({ask.prompt for _, ask in exchange.asks}) == 10


async def test_no_request_is_begun_after_the_time_is_over() -> None:
    """The one under way is waited for; arrivals beyond it are left out."""
    exchange = FakeExchange()
    exchange.takes_s = 0.1
    taken = await run(exchange, Closed(concurrency=1), seconds=0.15)

    assert len(taken.records) == 2
    assert taken.duration_s >= 0.2
    assert len((await run(FakeExchange(), Open(due_s=[0.0, 0.01, 3600.0]), seconds=1.0)).records) == 2


async def test_an_open_loop_does_not_wait_for_answers() -> None:
    """All are sent although the first one hangs for as long as the others take."""
    exchange = FakeExchange()
    exchange.takes_s = 0.2
    taken = await run(exchange, Open(due_s=[0.0, 0.01, 0.02, 0.03]))

    assert exchange.most_open == 4
    assert [each.due_s for each in sorted(taken.records, key=lambda each: each.index)] == [0.0, 0.01, 0.02, 0.03]
    assert all(each.started_s >= (each.due_s or 0) for each in taken.records)


async def test_a_cap_makes_arrivals_wait_in_line() -> None:
    """And they say for how long."""
    exchange = FakeExchange()
    exchange.takes_s = 0.2
    taken = await run(exchange, Open(due_s=[0.0, 0.0, 0.0], cap=1))  # on a loaded machine they arrive late

    assert exchange.most_open == 1
    queued = sorted(each.queued_s for each in taken.records)
    assert queued[1] > 0.05
    assert queued[2] > 0.2


@pytest.mark.parametrize("cap", [1, None])
async def test_a_request_that_was_due_and_is_never_sent_is_counted(cap: int | None) -> None:
    """Those in line when the time is over waited longest; one that is late on this side is no different."""
    exchange = FakeExchange()
    exchange.takes_s = 0.3

    taken = await run(exchange, Open(due_s=[0.0] * 5, cap=cap), seconds=0.2)

    assert len(taken.records) + taken.unsent == 5
    assert cap is None or len(taken.records) <= 1
    assert (taken.in_flight, taken.in_line) == (0, 0)


async def test_turns_follow_each_other_with_the_answers_in_them() -> None:
    """Two conversations of three turns; the turns of one are in order. A fifth request may be the last of all.

    A failed turn ends its conversation, as there is no answer to go on from; the next one begins.
    """
    exchange = FakeExchange()
    taken = await run(exchange, Closed(concurrency=2), MultiTurn(making(chat=True), 3), requests=6)

    assert Counter(each.conversation for each in taken.records) == {0: 3, 1: 3}
    for conversation in (0, 1):
        asks = [(index, ask) for index, ask in exchange.asks if ask.conversation == conversation]
        assert [ask.turn for _, ask in asks] == [0, 1, 2]
        assert f"answer {asks[0][0]}" in str(asks[1][1].prompt)
    assert len((await run(FakeExchange(), Closed(concurrency=2), MultiTurn(making(), 3), requests=5)).records) == 5
    failing = FakeExchange()
    failing.fails = {0}
    await run(failing, Closed(concurrency=1), MultiTurn(making(), 3), requests=2)
    assert [(ask.conversation, ask.turn) for _, ask in failing.asks] == [(0, 0), (1, 0)]


@pytest.mark.parametrize("load", [Closed(concurrency=3), Open(due_s=[0.0, 0.0, 0.0]), Open(due_s=[0.0] * 4, cap=2)])
async def test_stopping_keeps_what_there_is(load: Load) -> None:
    """Requests in flight are given up and counted, and nothing is left running."""
    exchange, stop = FakeExchange(), asyncio.Event()
    exchange.hangs = {1, 2, 3}
    asking: Any = exchange
    loop = Loop(asking, RandomPrompts(making()), Limits(requests=4, seconds=60.0))
    running = asyncio.create_task(loop.run(load, stop))
    await until_true(lambda: exchange.open >= 2 and loop.taken.records)
    stop.set()
    taken = await asyncio.wait_for(running, 5)

    assert (len(taken.records), exchange.open) == (1, 0)
    assert taken.in_flight + taken.in_line >= 2


async def test_warming_up_uses_prompts_that_do_not_come_again() -> None:
    """Else the first measured requests would find them in the cache."""
    exchange = FakeExchange()
    asking: Any = exchange
    source = RandomPrompts(making())
    records = await warm_up(asking, source, 5, 2)
    await run(exchange, Closed(concurrency=2), source, requests=5)

    assert (len(records), exchange.most_open) == (5, 2)
    assert len({repr(ask.prompt) for _, ask in exchange.asks}) == 10
