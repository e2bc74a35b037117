"""Which streams are broken off, and when, without nodes."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from baton.contracts.http import ANSWER_COMMENT, TOKENS_COMMENT
from baton.proxy.errors import FailureKind, StreamBrokenError
from baton.proxy.handler import stream_watch
from baton.proxy.handler.stream_watch import MOST_AT_ONCE, StreamWatch
from baton.proxy.nodes.moves import Moves
from baton.proxy.nodes.node import State
from baton.proxy.planning.retry_policy import NOTHING_YET, History, RetryPolicy
from baton.proxy.request.endpoints import CHAT
from baton.proxy.request.parse import parse
from baton.proxy.resume.stream import Stream
from tests.support.cluster import until_true


class FakeNode:
    starts_with_tokens = True
    incarnation = ""
    sends_streams = True

    def __init__(self, state: State) -> None:
        self.url = f"http://{id(self)}"
        self.state = self.probed = state
        self.moves = Moves()
        self.evacuated_at = 0.0

    def serves(self, model: str) -> bool:
        return model == "m"


def stream(line: bytes = b"0 1", *, resumes: bool = True) -> Stream:
    """A stream that has said something, its tokens named like this."""
    body = msgspec.json.encode({"model": "m", "messages": [], "stream": True})
    made = Stream(parse(CHAT, "r", [], body), resumes=resumes)
    made.begin_decode(cast("Any", SimpleNamespace(sent_s=1.0, second_token_gap_s=None)))
    choice = {"index": 0, "delta": {"content": "a"}, "finish_reason": None}
    made.take(TOKENS_COMMENT + line + b"\ndata: " + json.dumps({"choices": [choice]}).encode() + b"\n\n")
    return made


class Watched:
    def __init__(
        self,
        *nodes: FakeNode,
        stall_timeout_s: float = 5.0,
        prefill: Sequence[FakeNode] | None = None,
        retries: RetryPolicy | None = None,
    ) -> None:
        self.nodes = nodes
        self.watch = StreamWatch(
            cast("Any", nodes),
            cast("Any", prefill),
            stall_timeout_s=stall_timeout_s,
            drain_handover_s=0,
            retries=retries,
        )
        self.broken: list[FailureKind] = []
        self.tasks: list[asyncio.Task[None]] = []
        self.relays: list[Any] = []

    def add(self, made: Stream, history: History = NOTHING_YET, *, sent_s: float = 1.0, has_kv: bool = True) -> None:
        self.tasks.append(asyncio.create_task(self._run(made, history, sent_s, has_kv)))

    async def _run(self, made: Stream, history: History, sent_s: float, has_kv: bool) -> None:
        relay = cast(
            "Any", SimpleNamespace(stream=made, record=SimpleNamespace(sent_s=sent_s), onto=None, asked_at=0.0)
        )
        self.relays.append(relay)
        try:
            with self.watch.watching(cast("Any", self.nodes[0]), history, relay, has_kv=has_kv):
                await asyncio.sleep(60)
        except StreamBrokenError as exc:
            self.broken.append(exc.how)


Watch = Callable[..., Watched]


@pytest.fixture
async def watch() -> AsyncIterator[Watch]:
    """Watches the streams of a node in some state, beside another that is ready; they are ended afterwards."""
    made: list[Watched] = []

    def begin(state: State, ahead: "Ahead | None" = None, **settings: Any) -> Watched:
        made.append(here := Watched(FakeNode(state), FakeNode(State.READY), **settings))
        if ahead is not None:
            here.watch.ahead = cast("Any", ahead)
        return here

    yield begin
    for task in (task for each in made for task in each.tasks):
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


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


def whole(said: bytes = TOKENS_COMMENT + b"0 1\n") -> Stream:
    """An answer that is not streamed, of which a node has said something."""
    made = Stream(parse(CHAT, "r", [], msgspec.json.encode({"model": "m", "messages": []})), resumes=True)
    assert made.kept is not None
    made.kept.take(said)
    return made


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


@pytest.mark.parametrize(("burst", "attempts"), [(0, 0), (2, 2)])
async def test_answers_stay_on_a_silent_node_without_a_retry(burst: int, attempts: int, watch: Watch) -> None:
    """Of all requests, or their own. A drain costs none."""
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


async def test_a_stall_is_counted_from_the_legs_beginning(watch: Watch) -> None:
    here = watch(State.SILENT, stall_timeout_s=2.0)
    here.add(stream(), sent_s=1e-9)
    await asyncio.sleep(0.3)
    assert here.broken == []

    await until_true(lambda: here.broken == [FailureKind.STALLED])


class Ahead:
    """Sends KV when it is told to."""

    most = 1

    def __init__(self) -> None:
        self.ended: list[asyncio.Future[Any]] = []
        self.planned = 0

    def plan(self, *_: object) -> Any:
        self.planned += 1
        return SimpleNamespace()

    async def send(self, *_: object) -> Any:
        self.ended.append(asyncio.get_running_loop().create_future())
        return await self.ended[-1]


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
