"""Which streams are broken off, and when, without nodes."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from baton.contracts.http import ANSWER_COMMENT, TOKENS_COMMENT
from baton.proxy.errors import FailureKind
from baton.proxy.handler import stream_watch
from baton.proxy.handler.stream_watch import MOST_AT_ONCE, StreamWatch
from baton.proxy.nodes.node import State
from baton.proxy.planning.retry_policy import NOTHING_YET, History, RetryPolicy
from baton.proxy.resume.stream import Stream
from tests.support.cluster import until_true
from tests.unit.proxy.handler.watched_streams import Ahead, FakeNode, Watch, Watched, stream, whole


async def test_streams_that_no_node_could_go_on_with_stay(watch: Watch) -> None:
    """No other node, nor another member with its address; another that failed on this request; a stream whose tokens are not known; one that has said nothing."""
    alone, failed = watch(State.DRAINING), watch(State.DRAINING)
    alone.nodes[1].url = alone.nodes[0].url
    alone.add(stream())
    failed.add(stream(), NOTHING_YET.without(cast("Any", failed.nodes[1])))
    failed.add(stream(b"0 1,,2"))
    failed.add(stream(), sent_s=0.0)
    await asyncio.sleep(0.3)
    assert alone.broken + failed.broken == []

    failed.add(stream())  # the watch goes on
    await until_true(lambda: failed.broken == [FailureKind.DRAINED])


HEAD = ANSWER_COMMENT + b'{"status":200,"headers":[]}\n{'


@pytest.mark.parametrize(
    ("made", "sent_s", "why"),
    [
        (lambda: stream(resumes=False), 1.0, "off"),
        (stream, 0.0, "beginning"),
        (lambda: stream(b"0 1,,2"), 1.0, "no_token_ids"),
        (lambda: whole(b""), 0.0, "beginning"),
        (lambda: whole(TOKENS_COMMENT + b"0 1\n" + HEAD), 0.0, "ending"),
        (stream, 1.0, "no_node"),
        (whole, 0.0, "no_node"),
    ],
)
async def test_why_answers_stay_on_a_node_that_is_drained_is_shown(
    watch: Watch, made: Callable[[], Stream], sent_s: float, why: str
) -> None:
    """The other node has another model."""
    here = watch(State.DRAINING)
    here.nodes[1].serves = lambda model: model == "another"  # type: ignore[method-assign]
    here.add(made(), sent_s=sent_s)

    await until_true(lambda: here.nodes[0].moves.staying == {why: 1})
    assert not here.broken


async def test_whole_answers_leave_with_their_tokens(watch: Watch) -> None:
    """Those that come are no silence."""
    silent, draining = watch(State.SILENT, stall_timeout_s=2.0), watch(State.DRAINING)
    spoken = whole()
    for here, one in ((silent, spoken), (silent, whole()), (draining, whole())):
        here.add(one, sent_s=0.0)
    for at in range(2, 1_000):
        assert spoken.kept is not None
        spoken.kept.take(TOKENS_COMMENT + b"0 %d\n" % at)
        if silent.broken and draining.broken:
            break
        await asyncio.sleep(0.02)

    assert (silent.broken, draining.broken) == ([FailureKind.STALLED], [FailureKind.DRAINED])
    await until_true(lambda: silent.broken == [FailureKind.STALLED] * 2)


@pytest.mark.parametrize("state", [State.SILENT, State.DRAINING])
async def test_whole_answers_that_stay(state: State, watch: Watch) -> None:
    """Nothing is there yet; what is there is not known; all is there, and its body on its way."""
    here = watch(state, stall_timeout_s=0.2)
    for said in (b"", TOKENS_COMMENT + b"0 1,,2\n", TOKENS_COMMENT + b"0 1\n" + HEAD):
        here.add(whole(said), sent_s=0.0)
    await asyncio.sleep(0.6)

    assert here.broken == []


@pytest.mark.parametrize(("burst", "attempts"), [(0, 0), (2, 1), (2, 2)])
async def test_answers_stay_on_a_silent_node_without_a_retry(burst: int, attempts: int, watch: Watch) -> None:
    """Of all requests, or their own, of which the attempt that ends is one. A drain costs none."""
    retries = RetryPolicy(share=0, burst=burst, max_attempts=2, clock=lambda: 0.0)
    silent, draining = (watch(state, stall_timeout_s=0.2, retries=retries) for state in (State.SILENT, State.DRAINING))
    for here in (silent, draining):
        here.add(stream(), History(attempts=attempts))
    await until_true(lambda: draining.broken == [FailureKind.DRAINED])
    await asyncio.sleep(0.5)
    assert silent.broken == []

    if burst:
        silent.add(stream())
        await until_true(lambda: silent.broken == [FailureKind.STALLED])


async def test_answers_stay_on_a_draining_node_where_none_is_made_without_a_prefill_node(
    watch: Watch,
) -> None:
    prefill = FakeNode(State.DOWN)
    here = watch(State.DRAINING, prefill=[prefill])
    here.add(stream())
    await until_true(lambda: here.nodes[0].moves.staying == {"no_node": 1})
    assert here.broken == []

    prefill.state = State.READY
    await until_true(lambda: here.broken == [FailureKind.DRAINED])


@pytest.mark.parametrize("state", [State.DRAINING, State.SILENT])
@pytest.mark.parametrize("unfit", ["model", "layout", "failed"])
async def test_nor_for_a_prefill_node_that_has_another_model_or_layout_or_has_failed_on_the_request(
    watch: Watch, unfit: str, state: State
) -> None:
    prefill = FakeNode(State.READY)
    if unfit == "model":
        prefill.serves = lambda model: model == "another"  # type: ignore[method-assign]
    elif unfit == "layout":
        prefill.pairing = None
    here = watch(state, prefill=[prefill], stall_timeout_s=0.1)
    here.add(stream(), NOTHING_YET.without(cast("Any", prefill)) if unfit == "failed" else NOTHING_YET)

    if state is State.DRAINING:
        await until_true(lambda: here.nodes[0].moves.staying == {"no_node": 1})
    await asyncio.sleep(0.4)
    assert here.broken == []


@pytest.mark.parametrize("is_given_back", [False, True])
async def test_a_late_probe_does_not_begin_the_time_of_a_draining_node_again(
    watch: Watch, monkeypatch: pytest.MonkeyPatch, is_given_back: bool
) -> None:
    """Its streams leave while it is still there; not at once if an operator wanted it back before draining it again."""
    monkeypatch.setattr(stream_watch, "LOOK_EVERY_S", 60.0)
    here = watch(State.DRAINING, stall_timeout_s=60.0)
    node = here.nodes[0]
    here.watch._drain_handover_s, node.draining = 10.0, True
    here.add(stream(), sent_s=100.0)
    await until_true(lambda: here.watch._timer is not None)
    looks = ((100.0, State.DRAINING), (105.0, State.DOWN), (109.0, State.DRAINING), (110.5, State.DRAINING))
    for now_s, node.state in looks:
        node.probed = node.state
        node.draining = not (is_given_back and node.state is State.DOWN)
        monkeypatch.setattr(stream_watch, "perf_counter", lambda now_s=now_s: now_s)
        here.watch._look()
        await asyncio.sleep(0.01)
        assert here.broken == [] or now_s == 110.5

    if is_given_back:
        assert here.broken == []
    else:
        await until_true(lambda: here.broken == [FailureKind.DRAINED])


async def test_streams_of_a_silent_node_leave_in_portions(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other nodes have to compute their prompts again."""
    here = watch(State.SILENT, stall_timeout_s=0.0)
    for _ in range(MOST_AT_ONCE + 4):
        here.add(stream())
    await asyncio.sleep(0)  # the first look is on its way
    monkeypatch.setattr(stream_watch, "LOOK_EVERY_S", 60.0)
    await until_true(lambda: here.broken)
    await asyncio.sleep(0.1)

    assert len(here.broken) == MOST_AT_ONCE


@pytest.mark.parametrize("is_ready", [False, True])
async def test_one_whose_kv_can_be_sent_ahead_needs_no_prefill_node(watch: Watch, is_ready: bool) -> None:
    """Its own node is the source."""
    prefill = FakeNode(State.READY if is_ready else State.DOWN)
    prefill.pairing = None
    ahead = Ahead()
    here = watch(State.READY, ahead, prefill=[prefill])
    here.nodes[0].evacuated_at = 1.0
    here.add(stream())
    await until_true(lambda: ahead.ended)
    ahead.ended[0].set_result(SimpleNamespace(decode=here.nodes[1]))

    await until_true(lambda: here.broken == [FailureKind.DRAINED])


async def test_streams_of_two_silent_nodes_leave_for_the_retries_that_both_have(watch: Watch) -> None:
    """Each is paid for when it goes on, after the look at which both may leave."""
    retries = RetryPolicy(share=0, burst=1, max_attempts=2, clock=lambda: 0.0)
    here = Watched(*map(FakeNode, (State.SILENT, State.SILENT, State.READY)), stall_timeout_s=0.2, retries=retries)
    here.add(stream(), on=0)
    here.add(stream(), on=1)
    await until_true(lambda: here.broken)
    await asyncio.sleep(0.3)
    broken = [*here.broken]
    for task in here.tasks:
        task.cancel()

    assert broken == [FailureKind.STALLED]


async def test_a_stall_is_counted_from_the_legs_beginning(watch: Watch) -> None:
    here = watch(State.SILENT, stall_timeout_s=2.0)
    here.add(stream(), sent_s=1e-9)
    await asyncio.sleep(0.3)
    assert here.broken == []

    await until_true(lambda: here.broken == [FailureKind.STALLED])


async def test_streams_of_a_silent_node_that_are_to_leave_stay_until_it_has_stalled(watch: Watch) -> None:
    here = watch(State.SILENT, stall_timeout_s=60.0)
    here.add(stream())
    await until_true(lambda: here.watch._timer is not None)
    assert here.nodes[0].moves.staying == {}
    here.nodes[0].evacuated_at = 1.0

    await until_true(lambda: here.nodes[0].moves.staying == {"silent": 1})
    assert not here.broken


async def test_a_node_without_streams_is_not_looked_at(watch: Watch) -> None:
    """Those that stayed are gone."""
    here = watch(State.DRAINING)
    here.nodes[1].state = State.DOWN
    here.add(stream())
    await until_true(lambda: here.nodes[0].moves.staying == {"no_node": 1})

    here.tasks[0].cancel()
    await until_true(lambda: here.watch._timer is None)

    assert here.nodes[0].moves.staying == {}
    assert not here.watch._streams


async def test_the_tokens_that_a_whole_answer_has_at_the_first_look_are_no_silence() -> None:
    """Nor those that have come since the last one."""
    made = whole()
    assert made.kept is not None
    relay = SimpleNamespace(stream=made, record=SimpleNamespace(sent_s=0.0), asked_at=0.0)
    watched = StreamWatch(cast("Any", ()), stall_timeout_s=5.0, drain_handover_s=0)
    one: Any = watched.watching(cast("Any", FakeNode(State.SILENT)), NOTHING_YET, cast("Any", relay))

    assert [one.idle_s(now_s) for now_s in (1e9, 1e9 + 3)] == [0.0, 3.0]
    made.kept.take(TOKENS_COMMENT + b"0 2\n")
    assert [one.idle_s(now_s) for now_s in (1e9 + 4, 1e9 + 6)] == [0.0, 2.0]
