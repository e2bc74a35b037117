"""The watch over single transfers, against a node that only tells of them."""

from pathlib import Path
from typing import Any

import pytest

from baton.contracts.http import TRACE_PATH
from baton.contracts.secret import generate_secret
from baton.loadtest.client.http import parse_address
from baton.loadtest.errors import RunError
from baton.loadtest.run import nodes
from baton.loadtest.run.nodes import LegWatch, token
from tests.integration.loadtest.saying import saying
from tests.support.cluster import until_true
from tests.support.fake_asgi import answer_json, follow_lifespan
from tests.support.serve import serve


class FakeNode:
    """Tells a client that has the token what is in `events`."""

    def __init__(self, bearer: str) -> None:
        self.events: list[dict[str, Any]] = []
        self.asked = 0
        self.broken = False
        self._expected = f"Bearer {bearer}".encode()

    def tell(self, transfer: str, name: str, began_s: float, ended_s: float) -> None:
        """Remember a span, as a node does: the last two only."""
        span = {"ph": "X", "name": name, "ts": began_s * 1e6, "dur": (ended_s - began_s) * 1e6, "cat": "baton"}
        process = {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "prefill node"}}
        last = [event for event in self.events if event["ph"] == "X"][-1:]
        self.events = [process, *last, {**span, "args": {"transfer_id": transfer, "outcome": "committed"}}]

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            return await follow_lifespan(receive, send)
        assert scope["path"] == TRACE_PATH
        self.asked += 1
        if dict(scope["headers"]).get(b"authorization") != self._expected:
            return await answer_json(send, 401, {"error": {"message": "a token is needed"}})
        if self.broken:
            return await answer_json(send, 503, {"error": {"message": "the connector is silent"}})
        return await answer_json(send, 200, self.events)


@pytest.fixture
def bearer(tmp_path: Path) -> str:
    path = tmp_path / "secret"
    path.write_text(generate_secret())
    return token(path)


async def test_what_a_node_forgets_has_been_seen_before(bearer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks while the stage runs, and one at its end; transfers that are not asked for are left out."""
    monkeypatch.setattr(nodes, "LOOK_EVERY_S", 0.01)
    node = FakeNode(bearer)
    node.tell("others", "prefill", 1.0, 2.0)
    async with serve(node) as url, LegWatch([parse_address(url)], bearer).watching() as watch:
        for at in range(4):
            node.tell(f"t{at}", "prefill", 10.0 + at, 10.5 + at)
            times = node.asked + 2
            await until_true(lambda: node.asked >= times)  # noqa: B023  # it ends before the next turn
        node.tell("last", "prefill", 20.0, 21.0)

    found = watch.legs(["t0", "t1", "t2", "t3", "last", "unknown"], 10.0)
    assert [(each.transfer_id, each.spans["prefill"]) for each in found] == [
        ("t0", (0.0, 0.5)),
        ("t1", (1.0, 1.5)),
        ("t2", (2.0, 2.5)),
        ("t3", (3.0, 3.5)),
        ("last", (10.0, 11.0)),
    ]
    assert watch.note == ""


async def test_a_wrong_token_is_told_before_anything_is_measured(bearer: str) -> None:
    """With the node's address and its words. Without a secret none is asked: metrics alone need none."""
    node = FakeNode(bearer)
    async with serve(node) as url:
        async with LegWatch([parse_address(url)], "").watching() as watch:
            pass
        assert (node.asked, watch.legs(["t"], 0.0), watch.note) == (0, [], "")
        with pytest.raises(RunError, match=f"{url}{TRACE_PATH} answered 401: a token is needed"):
            await LegWatch([parse_address(url)], "another").watching().__aenter__()


@pytest.mark.parametrize("body", [b"<html>", b'[{"name": "\xff"}]', b"[" + b'{"more": ' * 100_000])
async def test_what_is_no_trace_is_told(bearer: str, body: bytes) -> None:
    async with saying(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)) as url:
        with pytest.raises(RunError, match=f"{TRACE_PATH} is no trace"):
            await LegWatch([parse_address(url)], bearer).watching().__aenter__()


async def test_a_node_that_falls_silent_ends_no_measurement(bearer: str) -> None:
    """The report says that looks failed, and why the last one did."""
    node = FakeNode(bearer)
    async with serve(node) as url, LegWatch([parse_address(url)], bearer).watching() as watch:
        node.broken = True

    assert "1 looks at nodes failed" in watch.note
    assert "the connector is silent" in watch.note
