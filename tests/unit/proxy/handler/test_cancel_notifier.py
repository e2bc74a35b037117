"""What a prefill node is told, and how often, by a node's answers."""

import asyncio
import json
from typing import Any
from unittest.mock import Mock

import pytest

from baton.contracts.http import CANCEL_PATH, MAX_CANCELLED
from baton.proxy.errors import FailureKind, UpstreamError
from baton.proxy.handler import cancel_notifier
from baton.proxy.handler.cancel_notifier import MAX_WAITING, PAUSES_S, CancelNotifier
from tests.support.cluster import until_true
from tests.support.fake_vllm import SECRET
from tests.unit.proxy.members import node

PATIENCE_S = 60.0


class Upstream:
    """A node whose answers a test says: statuses, failures, or nothing at all (0)."""

    def __init__(self, *answers: int | FailureKind) -> None:
        self.answers = [*answers]
        self.calls: list[tuple[Any, ...]] = []
        self.closed = 0

    async def post(self, *call: Any) -> Any:
        self.calls.append(call)
        answer = self.answers.pop(0) if self.answers else 200
        if answer == 0:
            await asyncio.sleep(60)
        if isinstance(answer, FailureKind):
            raise UpstreamError(answer, f"it says {answer}")
        return Mock(status=answer, read_all=self._read_all, close=self._close)

    async def _read_all(self) -> bytes:
        return b""

    def _close(self) -> None:
        self.closed += 1

    @property
    def told(self) -> list[list[str]]:
        return [json.loads(body)["transfer_ids"] for _, _, _, body in self.calls]


def notifier(upstream: Any) -> tuple[CancelNotifier, Mock]:
    metrics = Mock()
    return CancelNotifier(SECRET, upstream, metrics, patience_s=PATIENCE_S), metrics


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses that were made; no time passes but in these."""
    pauses: list[float] = []
    sleep = asyncio.sleep

    async def pause(pause_s: float) -> None:
        pauses.append(pause_s)
        await sleep(0)

    monkeypatch.setattr(cancel_notifier, "asyncio", Mock(wraps=asyncio, sleep=pause))
    monkeypatch.setattr(cancel_notifier, "time", Mock(monotonic=lambda: sum(pauses)))
    return pauses


async def end(made: CancelNotifier) -> None:
    await until_true(lambda: not made._tasks)


async def test_a_node_is_told_by_the_secret_that_both_share(caplog: pytest.LogCaptureFixture) -> None:
    upstream = Upstream()
    made, metrics = notifier(upstream)
    made.add(node("prefill", "http://p"), "a")
    made.add(node("prefill", "http://q"), "b")
    await end(made)

    head = f"authorization: Bearer {SECRET.node_token()}\r\ncontent-type: application/json\r\n".encode()
    assert upstream.calls == [
        (url, CANCEL_PATH, head, json.dumps({"transfer_ids": [one]}, separators=(",", ":")).encode())
        for url, one in (("http://p", "a"), ("http://q", "b"))
    ]
    assert [call.args for call in metrics.cancelled.call_args_list] == [("told", 1)] * 2
    assert upstream.closed == 2
    assert not caplog.records


@pytest.mark.parametrize(
    ("answers", "calls", "problem"),
    [
        ([503, FailureKind.DISCONNECT, 200], 3, ""),
        ([499], 1, "it answered 499"),
        ([201], 1, "it answered 201"),
        ([500, 200], 2, ""),
        ([FailureKind.CONNECT], 1, "it says connect"),
    ],
)
async def test_which_answers_are_an_end(
    slept: list[float], caplog: pytest.LogCaptureFixture, answers: list[Any], calls: int, problem: str
) -> None:
    """A node that is there and does not take them is asked again; one that is gone has nothing to give up."""
    upstream = Upstream(*answers)
    made, metrics = notifier(upstream)
    made.add(node("prefill", "http://p"), "a")
    await end(made)

    assert upstream.told == [["a"]] * calls
    assert [call.args for call in metrics.cancelled.call_args_list] == [("lost" if problem else "told", 1)]
    said: list[Any] = [*caplog.records]
    assert [(line.url, line.transfers, line.reason) for line in said] == [("http://p", 1, problem)] * bool(problem)
    assert len(slept) == calls - 1


async def test_a_node_is_tried_for_as_long_as_it_keeps_prompts(slept: list[float]) -> None:
    """After pauses that grow, and end before the time has passed."""
    upstream = Upstream(*[503] * 99)
    made, metrics = notifier(upstream)
    made.add(node("prefill"), "a")
    await end(made)

    first_s, longest_s = PAUSES_S
    assert slept[:5] == [first_s, 2 * first_s, 4 * first_s, 8 * first_s, longest_s]
    assert set(slept[5:]) == {longest_s}
    assert PATIENCE_S - longest_s <= sum(slept) < PATIENCE_S
    assert len(upstream.calls) == len(slept) + 1
    metrics.cancelled.assert_called_once_with("lost", 1)


async def test_a_node_that_is_silent_is_asked_again(slept: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cancel_notifier, "TIMEOUT_S", 0.01)
    upstream = Upstream(0)
    made, metrics = notifier(upstream)
    made.add(node("prefill"), "a")
    await end(made)

    assert (len(upstream.calls), len(slept)) == (2, 1)
    metrics.cancelled.assert_called_once_with("told", 1)


async def test_what_waits_for_a_node_is_bounded_and_sent_in_portions() -> None:
    """The oldest go first."""
    upstream, prefill = Upstream(), node("prefill")
    made, metrics = notifier(upstream)
    ids = [str(at) for at in range(MAX_WAITING + 1)]
    for one in ids:
        made.add(prefill, one)
    await end(made)

    assert upstream.told == [ids[at : at + MAX_CANCELLED] for at in range(1, len(ids), MAX_CANCELLED)]
    assert [call.args for call in metrics.cancelled.call_args_list] == [("lost", 1)] + [("told", MAX_CANCELLED)] * 8


async def test_a_proxy_that_stops_says_what_it_can_for_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that is silent is given up."""
    upstream = Upstream()
    made, _ = notifier(upstream)
    await made.stop()
    made.add(node("prefill"), "a")
    await made.stop()
    assert upstream.told == [["a"]]

    monkeypatch.setattr(cancel_notifier, "TIMEOUT_S", 0.05)
    upstream.answers = [503]
    made.add(node("prefill"), "b")
    async with asyncio.timeout(20):
        await made.stop()
    assert upstream.told == [["a"], ["b"]]
    assert not made._tasks
