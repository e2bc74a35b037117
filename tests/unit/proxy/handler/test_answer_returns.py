"""Which answers are returned, how many at once, and what waits or is dropped."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, cast
from unittest.mock import Mock

import msgspec
import pytest

from baton.proxy.handler import answer_returns
from baton.proxy.handler.answer_returns import MAX_WAIT_S, AnswerReturns
from baton.proxy.nodes.node import Node, State
from baton.proxy.request.endpoints import CHAT, COMPLETIONS
from baton.proxy.request.parse import parse
from baton.proxy.resume.stream import Stream
from tests.unit.proxy.members import node
from tests.unit.proxy.planning.planners import SENDS, planner
from tests.unit.proxy.resume.test_stream import event, gap

IMAGE = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "https://a/b.png"}}]}]
BLOCK = 16


def answer(tokens: int = 40, headers: Any = (), **fields: Any) -> Stream:
    """An answer that has ended, with so many tokens."""
    endpoint, prompt = (CHAT, {}) if "messages" in fields else (COMPLETIONS, {"prompt": "x" * 8})
    body = msgspec.json.encode({"model": "m", "stream": True, **prompt, **fields})
    made = Stream(parse(endpoint, "r", [*headers], body), resumes=True)
    made.begin_decode(gap())
    made.take(b"".join(event(token) for token in range(tokens)))
    return made


class Returns:
    """Returns between one decode node and some prefill nodes, each of which ends when it is told to."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, *, mode: Any = "on", workers: int = 1, prefill: int = 1
    ) -> None:
        self.source = node("decode", "http://d", **SENDS)
        self.prefill = [node("prefill", f"http://p{at}", at + 1, **SENDS) for at in range(prefill)]
        self.metrics, self.now_s = Mock(), 100.0
        self.sent: list[tuple[Any, ...]] = []
        self.ends: list[asyncio.Future[str]] = []
        self.ended = 0
        monkeypatch.setattr(answer_returns, "send_kv", self._send)
        monkeypatch.setattr(answer_returns, "perf_counter", lambda: self.now_s)
        plans = planner(self.prefill, [self.source])
        self.made = AnswerReturns(plans, Mock(), self.metrics, mode=mode, timeout_s=5.0, workers=workers)

    async def _send(self, attempts: object, plan: Any, requests: list[Any], *, timeout_s: float) -> str:
        self.sent.append((attempts, plan, requests, timeout_s))
        self.ends.append(asyncio.get_running_loop().create_future())
        try:
            return await self.ends[-1]
        finally:
            self.ended += 1

    async def offer(self, made: Stream, to: Node | None = None) -> None:
        self.made.offer(made, (self.source, to or self.prefill[0]))
        await settle()

    async def end(self, at: int, problem: str = "") -> None:
        self.ends[at].set_result(problem)
        await settle()

    @property
    def counted(self) -> list[str]:
        return [call.args[0] for call in self.metrics.returned.call_args_list]

    @property
    def asked(self) -> list[str]:
        """The requests whose answers have been sent, by the user that they name."""
        return [msgspec.json.decode(requests[0].fields["user"]) for _, _, requests, _ in self.sent]


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


Make = Callable[..., Returns]


@pytest.fixture
async def make(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Make]:
    made: list[Returns] = []

    def make_one(**settings: Any) -> Returns:
        made.append(Returns(monkeypatch, **settings))
        return made[-1]

    yield make_one
    for one in made:
        await one.made.stop()


async def test_an_answer_returns_with_all_its_tokens_but_the_last(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    """Its prompt is no load for the prefill node."""
    here = make()
    await here.offer(answer())
    await here.end(0)
    await here.offer(answer())
    with caplog.at_level("INFO"):
        await here.end(1, "it took too long")

    attempts, plan, (asked,), timeout_s = here.sent[0]
    assert (plan.prefill, plan.decode) == (here.source, here.prefill[0])
    assert (asked.start, asked.names_tokens, bytes(asked.prompt)) == ((tuple(range(39)),), "", b"")
    assert (attempts, timeout_s) == (cast("Any", here.made)._attempts, 5.0)
    assert here.counted == ["returned", "failed"]
    assert [(record.reason, record.to, record.request_id) for record in cast("Any", caplog.records)] == [
        ("it took too long", "http://p0", "r")
    ]


@pytest.mark.parametrize(
    ("made", "settings", "returns"),
    [
        (answer(), {}, True),
        (answer(BLOCK + 1), {}, True),
        (answer(BLOCK), {}, False),
        (answer(0), {}, False),
        (answer(headers=[(b"x-return-answer", b" OFF ")]), {}, False),
        (answer(headers=[(b"x-return-answer", b"on")]), {}, True),
        (answer(n=2), {}, False),
        (answer(messages=IMAGE), {}, False),
        (answer(), {"mode": "off"}, False),
        (answer(), {"mode": "auto"}, False),  # nothing is known of the nodes' times
    ],
)
async def test_which_answers_return(make: Make, made: Stream, settings: dict[str, Any], *, returns: bool) -> None:
    here = make(**settings)
    await here.offer(made)

    assert bool(here.sent) == returns
    assert not here.counted


async def test_an_answer_without_a_pair_does_not_return(make: Make) -> None:
    here = make()
    here.made.offer(answer(), None)
    here.source.lose(State.DOWN, "gone")
    await here.offer(answer())

    assert not here.sent
    assert not here.counted


@pytest.mark.parametrize(
    ("computing_s", "step_s", "returns"),
    [(0.61, 0.25, True), (0.6, 0.25, False), (None, 0.25, False), (9.0, None, False)],
)
async def test_an_answer_returns_if_its_tokens_take_longer_than_a_step_of_both_nodes(
    make: Make, monkeypatch: pytest.MonkeyPatch, computing_s: float | None, step_s: float | None, *, returns: bool
) -> None:
    """Four bytes each, and nothing for the prompt that every request has; with one stream more where they were made."""
    here = make(mode="auto")
    times = {39 * 4: computing_s, 0: 0.1 if computing_s is not None else None}
    here.source.begin_stream(0)
    monkeypatch.setattr(here.prefill[0], "prefill_time", Mock(predict_s=lambda size, _: times[size]))
    monkeypatch.setattr(here.source, "inter_token", Mock(predict_s=lambda streams, _: {2: step_s}[streams]))

    await here.offer(answer())

    assert bool(here.sent) == returns


@pytest.mark.parametrize(("workers", "most"), [(1, 2), (2, 1), (5, 1)])
async def test_few_return_at_once_and_one_to_each_node(make: Make, workers: int, most: int) -> None:
    """The oldest that may goes next."""
    here = make(workers=workers, prefill=3)
    for user, at in (("a", 0), ("b", 0), ("c", 1), ("d", 2)):
        await here.offer(answer(user=user), here.prefill[at])
    assert here.asked == ["a", "c"][:most]

    await here.end(0)
    assert here.asked == ["a", "c", "b"] if most == 2 else ["a", "b"]
    assert here.counted == ["returned"]


@pytest.mark.parametrize("bound", ["MOST_WAITING", "MOST_WAITING_BYTES"])
async def test_the_oldest_that_wait_make_way(make: Make, monkeypatch: pytest.MonkeyPatch, bound: str) -> None:
    made = [answer(user=user) for user in "abcde"]
    monkeypatch.setattr(answer_returns, bound, 2 if bound == "MOST_WAITING" else 2 * made[0].asked.prompt_bytes)
    here = make()
    for each in made:
        await here.offer(each)
    assert here.counted == ["dropped"] * 2
    for at in range(3):
        await here.end(at)

    assert here.asked == ["a", "d", "e"]


@pytest.mark.parametrize("why", ["late", "source", "destination"])
async def test_what_has_waited_too_long_or_for_a_node_that_is_gone_is_dropped(make: Make, why: str) -> None:
    here = make(prefill=2)
    await here.offer(answer(user="a"))
    await here.offer(answer(user="b"))
    here.now_s += MAX_WAIT_S + (why == "late")
    if why != "late":
        (here.source if why == "source" else here.prefill[0]).lose(State.DOWN, "gone")
    await here.end(0)

    assert here.asked == ["a"]
    assert here.counted == ["returned", "dropped"]
    await here.offer(answer(user="c"), here.prefill[1])
    assert here.counted == ["returned", "dropped"]


async def test_what_has_waited_for_the_longest_time_is_not_dropped(make: Make) -> None:
    here = make()
    await here.offer(answer(user="a"))
    await here.offer(answer(user="b"))
    here.now_s += MAX_WAIT_S
    await here.end(0)

    assert here.asked == ["a", "b"]


async def test_a_proxy_that_stops_begins_no_other_return(make: Make) -> None:
    here = make()
    await here.offer(answer(user="a"))
    await here.offer(answer(user="b"))

    await here.made.stop()
    assert here.ended == 1
    await settle()

    assert here.asked == ["a"]
    assert not here.counted
