"""Which streams leave their node with their KV, and which without; no node is real."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from baton.proxy.errors import FailureKind
from baton.proxy.handler import stream_watch
from baton.proxy.handler.stream_watch import MOST_AT_ONCE
from baton.proxy.nodes.moves import Moves
from baton.proxy.nodes.node import State
from tests.support.cluster import until_true
from tests.unit.proxy.handler.watched_streams import Ahead, Watch, stream, whole


@pytest.mark.parametrize("why", ["none sends", "it is stopping", "it has no KV", "none could get it"])
async def test_streams_leave_without_their_kv_in_portions(
    watch: Watch, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    """So that the others compute them one after the other."""
    monkeypatch.setattr(stream_watch, "LOOK_EVERY_S", 60.0)
    ahead = None if why == "none sends" else Ahead()
    if ahead is not None and why == "none could get it":
        ahead.plan = lambda *_: None  # type: ignore[method-assign]
    here = watch(State.DRAINING if why == "it is stopping" else State.READY, ahead)
    for _ in range(MOST_AT_ONCE + 4):
        here.add(stream(), has_kv=why != "it has no KV")
    await asyncio.sleep(0.05)
    here.nodes[0].evacuated_at = 1.0
    for left in (MOST_AT_ONCE, MOST_AT_ONCE + 4):
        here.watch._look()
        await until_true(lambda: here.broken)
        await asyncio.sleep(0.05)
        assert here.broken == [FailureKind.DRAINED] * left


async def test_streams_leave_one_after_the_other_with_their_kv(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next one's goes ahead at once. A stream that ends is not waited for."""
    monkeypatch.setattr(stream_watch, "LOOK_EVERY_S", 60.0)
    ahead = Ahead()
    here = watch(State.READY, ahead)
    for _ in range(3):
        here.add(stream())
    await asyncio.sleep(0.05)
    here.nodes[0].evacuated_at = 1.0
    here.watch._look()

    await until_true(lambda: len(ahead.ended) == 1)
    assert here.nodes[0].moves.staying == {"sending": 1, "waiting": 2}
    timer, onto = here.watch._timer, SimpleNamespace(decode=here.nodes[1])
    ahead.ended[0].set_result(onto)
    for _ in range(10):  # rounds of the loop, between which no time passes
        await asyncio.sleep(0)
    assert len(ahead.ended) == ahead.planned == 2
    assert [relay.onto for relay in here.relays].count(onto) == 1
    assert timer is not None
    assert timer.cancelled(), "the next look is the one that was made just now"
    assert here.broken == [FailureKind.DRAINED]
    for task in here.tasks:
        task.cancel()
    await until_true(ahead.ended[1].cancelled)
    await asyncio.sleep(0.2)
    assert len(ahead.ended) == 2


@pytest.mark.parametrize("onto", [None, SimpleNamespace(decode=object())], ids=["it failed", "its node is gone"])
async def test_a_stream_whose_kv_could_not_go_ahead_stays_until_the_next_order(watch: Watch, onto: Any) -> None:
    """If its node only was to give it away; one that is stopping does so all the same."""
    ahead = Ahead()
    here = watch(State.READY, ahead)
    here.add(stream())
    await asyncio.sleep(0.05)
    here.nodes[0].evacuated_at = 1.0
    for sent in (1, 2):
        await until_true(lambda: len(ahead.ended) == sent)  # noqa: B023  # within the round
        ahead.ended[-1].set_result(onto)
        await until_true(lambda: here.nodes[0].moves.staying == {"failed": 1})
        await asyncio.sleep(0.25)
        assert (len(ahead.ended), here.broken) == (sent, [])
        here.nodes[0].moves = Moves()
    here.nodes[0].evacuated_at, here.nodes[0].state = 0.0, State.DRAINING
    ahead.plan = lambda *_: None  # type: ignore[method-assign]

    await until_true(lambda: here.broken == [FailureKind.DRAINED])


async def test_a_stream_that_ends_as_its_kv_arrives_is_not_told_where_to_go(watch: Watch) -> None:
    """Its next leg, if it has one, is another failure's."""
    ahead = Ahead()
    here = watch(State.READY, ahead)
    here.add(stream())
    await asyncio.sleep(0.05)
    here.nodes[0].evacuated_at = 1.0
    await until_true(lambda: ahead.ended)

    ahead.ended[0].set_result(SimpleNamespace(decode=here.nodes[1]))
    here.tasks[0].cancel()
    await asyncio.sleep(0.05)

    assert here.relays[0].onto is None


async def test_streams_of_a_node_that_is_stopping_leave_without_their_kv(
    watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the first look, if they are not to be kept for a while."""
    monkeypatch.setattr(stream_watch, "LOOK_EVERY_S", 60.0)
    ahead = Ahead()
    here = watch(State.DRAINING, ahead)
    here.add(stream())
    await asyncio.sleep(0.05)
    here.watch._look()

    await until_true(lambda: here.broken == [FailureKind.DRAINED])
    assert not ahead.ended


async def test_only_kv_that_a_node_is_known_to_have_goes_ahead(watch: Watch) -> None:
    """That of a whole answer whose tokens come is."""
    ahead = Ahead()
    here = watch(State.READY, ahead)
    here.add(stream(), has_kv=False)
    here.nodes[0].evacuated_at = 1.0
    await until_true(lambda: here.broken == [FailureKind.DRAINED])
    assert not ahead.ended

    here.add(whole(), has_kv=False)
    await until_true(lambda: ahead.ended)
    assert here.broken == [FailureKind.DRAINED]
