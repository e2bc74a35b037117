"""What a node says with its answers: how their KV came, and the ids of their tokens; and which it cannot begin with given tokens."""

import json
from typing import Any
from unittest.mock import AsyncMock

import pytest

from baton.contracts.http import NODE_PATH, PATH_HEADER, REASON_HEADER, TOKEN_IDS_HEADER
from baton.contracts.kv_transfer import FIELD, Role, TransferParams, sign
from baton.node.connector.connector_channel import ConnectorClient, Outcome, Outcomes, Snapshots
from baton.node.errors import ConnectorSilentError
from baton.node.http import token_ids
from baton.node.http.asgi import Scope
from baton.node.http.token_ids import TokenLog
from tests.support.asgi import Exchange, Recorder, body_of, http
from tests.unit.node.gate import COMPLETIONS, SECRET, TRANSFER, gate, leg
from tests.unit.node.http.fake_connector import WORKER


@pytest.fixture
def outcomes(monkeypatch: pytest.MonkeyPatch) -> dict[str, Outcome]:
    """What the connector has reported, by transfer id."""
    known: dict[str, Outcome] = {}
    monkeypatch.setattr(Outcomes, "take", lambda _, transfer_id: known.pop(transfer_id, None))
    return known


@pytest.mark.parametrize(
    ("said", "status"), [({"first_tokens": "3-d"}, 200), ({"first_tokens": ""}, 503), ({}, 503), (None, 503)]
)
async def test_a_node_that_cannot_start_with_tokens_refuses_them(
    monkeypatch: pytest.MonkeyPatch, outcomes: dict[str, Outcome], said: dict[str, Any] | None, status: int
) -> None:
    """VLLM's own scheduler would begin the answer from the start; a connector that says nothing may have that one."""
    answer = ConnectorSilentError("it does not answer") if said is None else Snapshots(said, {})
    monkeypatch.setattr(ConnectorClient, "both", AsyncMock(side_effect=[answer]))
    outcomes[TRANSFER] = Outcome(TRANSFER, "local", "")
    app = Recorder()
    exchange = await Exchange(http("POST", COMPLETIONS), body_of(leg(start=((5, 6),)))).run(gate(app))

    assert exchange.status == status
    assert len(app.scopes) == (status == 200)
    assert status != 200 or exchange.headers[PATH_HEADER] == "local"


@pytest.mark.usefixtures("outcomes")
async def test_a_node_that_has_told_a_proxy_that_it_starts_with_tokens_asks_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A connector that is too busy to answer costs no resumed stream."""
    known = Snapshots({"first_tokens": "3-d"}, {**WORKER, "fingerprint": None})
    monkeypatch.setattr(ConnectorClient, "both", AsyncMock(side_effect=[known, ConnectorSilentError("no answer")]))
    node = gate(Recorder())
    probe = http("GET", NODE_PATH, [("Authorization", f"Bearer {SECRET.node_token()}")])
    probe["app"] = None
    told = await Exchange(probe).run(node)
    resumed = await Exchange(http("POST", COMPLETIONS), body_of(leg(start=((5, 6),)))).run(node)

    assert (told.status, resumed.status) == (200, 200)


@pytest.mark.usefixtures("outcomes")
async def test_a_pushed_answer_says_so() -> None:
    """Nothing was reported, so the transfer went as planned."""
    exchange = await Exchange(http("POST", COMPLETIONS), body_of(leg())).run(gate(Recorder()))

    assert exchange.headers == {"x-own": "1", PATH_HEADER: "disaggregated"}
    assert exchange.body == b"onetwo"


async def test_a_recomputed_answer_says_so_and_why(outcomes: dict[str, Outcome]) -> None:
    """The reason is made fit for a header."""
    outcomes[TRANSFER] = Outcome(TRANSFER, "recomputed", "peer gone:\r\nx-evil: 1 ✗" + "!" * 300)
    exchange = await Exchange(http("POST", COMPLETIONS), body_of(leg())).run(gate(Recorder()))

    assert exchange.headers[PATH_HEADER] == "recomputed"
    assert exchange.headers[REASON_HEADER].startswith("peer gone:  x-evil: 1  !!")
    assert len(exchange.headers[REASON_HEADER]) == 200


async def test_the_head_waits_for_the_body_and_nothing_else_does(outcomes: dict[str, Outcome]) -> None:
    """A failure between head and first token is still named; later pieces pass at once."""
    exchange = Exchange(http("POST", COMPLETIONS), body_of(leg()))
    seen: list[int] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        seen.append(len(exchange.sent))
        outcomes[TRANSFER] = Outcome(TRANSFER, "recomputed", "")
        for piece in (b"a", b"b"):
            await send({"type": "http.response.body", "body": piece, "more_body": True})
            seen.append(len(exchange.sent))

    await exchange.run(gate(app))

    assert seen == [0, 2, 3]
    assert exchange.headers == {PATH_HEADER: "recomputed"}


@pytest.mark.usefixtures("outcomes")
@pytest.mark.parametrize(("role", "status"), [("decode", 500), ("prefill", 200)])
async def test_an_error_and_a_prefill_node_name_no_path(role: Role, status: int) -> None:
    """The first was computed nowhere; the other's answer is for the proxy alone."""
    app = Recorder(
        {"type": "http.response.start", "status": status, "headers": []}, {"type": "http.response.body", "body": b"{}"}
    )
    exchange = await Exchange(http("POST", COMPLETIONS), body_of(leg(role))).run(gate(app, role))

    assert (exchange.status, exchange.headers) == (status, {})


class Streamer:
    """An application whose engine says a token before each of two events."""

    def __init__(self) -> None:
        self.logs: list[TokenLog | None] = []

    async def __call__(self, _scope: Scope, _receive: Any, send: Any) -> None:
        self.logs.append(log := token_ids._log.get())
        kind = (b"content-type", b"text/event-stream")
        await send({"type": "http.response.start", "status": 200, "headers": [kind]})
        for token in (7, 8):
            if log is not None:
                log.add(0, [token], ended=False)
            await send({"type": "http.response.body", "body": b"data: {}\n\n", "more_body": True})


@pytest.mark.parametrize("asks", [False, True])
async def test_tokens_are_named_to_those_who_ask(asks: bool) -> None:
    """With a header, whether a transfer belongs to the request or not. Nothing is kept of it."""
    app = Streamer()
    headers = [(TOKEN_IDS_HEADER, "1")] if asks else []
    exchange = await Exchange(http("POST", COMPLETIONS, headers), body_of(b"{}")).run(gate(app))

    lines = [b": baton tokens 0 %d\n" % token if asks else b"" for token in (7, 8)]
    assert exchange.body == b"".join(line + b"data: {}\n\n" for line in lines)
    assert [log is not None for log in app.logs] == [asks]
    assert token_ids._log.get() is None


@pytest.mark.parametrize("asks", [False, True])
async def test_a_stream_that_another_node_goes_on_with_is_held_before_its_tokens_are_named(
    monkeypatch: pytest.MonkeyPatch, asks: bool
) -> None:
    """Until there is room on the decode node; what comes in the meantime is named with the first event."""
    waits: list[str] = []

    async def wait(_outcomes: Outcomes, transfer_id: str, _timeout_s: float) -> bool:
        waits.append(transfer_id)
        assert app.logs[0] is not None
        app.logs[0].add(1, [9], ended=False)
        return True

    monkeypatch.setattr(Outcomes, "wait_until_reserved", wait)
    app = Streamer()
    params = TransferParams(transfer_id=TRANSFER, role="prefill", peer="", relays=True)
    body = json.dumps({FIELD: sign(params, SECRET)}).encode()
    headers = [(TOKEN_IDS_HEADER, "1")] if asks else []
    exchange = await Exchange(http("POST", COMPLETIONS, headers), body_of(body)).run(gate(app, "prefill"))

    first = b": baton tokens 0 7\n: baton tokens 1 9\n" if asks else b""
    assert exchange.sent[1]["body"] == first + b"data: {}\n\n"
    assert waits == [TRANSFER]
