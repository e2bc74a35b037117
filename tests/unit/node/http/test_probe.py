import asyncio
import json
import socket
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock, Mock, call

import pytest
import zmq

from baton.contracts.http import PROBE_PATH
from baton.contracts.probe import MAX_IDLE_S, MIB, SIZE_BYTES, Place, Pushed, Receiving
from baton.contracts.secret import ClusterSecret
from baton.node.http import probe
from baton.node.http.probe import MAX_BODY_BYTES, ProbeApi
from baton.node.http.probe_engines import ProbeBusyError, ProbeError
from tests.support.asgi import Exchange, body_of, http

SECRET = ClusterSecret(b"the secret of this cluster")
PLACE = Place(host="127.0.0.1", protocol="tcp")
PUSH = {"type": "push", "session": "h:1", "address": 4096, "size_bytes": MIB, "idle_s": 1}


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch) -> Mock:
    made = Mock(
        receive=AsyncMock(return_value=Receiving(session="h:1", address=4096, size_bytes=MIB)),
        release=AsyncMock(return_value=True),
        push=AsyncMock(return_value=Pushed(first_s=0.5)),
        stop=AsyncMock(),
    )
    monkeypatch.setattr(probe, "ProbeEngines", lambda _: made)
    return made


def probe_api() -> ProbeApi:
    return ProbeApi(SECRET, PLACE)


def asking(method: str, body: bytes) -> Exchange:
    return Exchange(http(method, PROBE_PATH), body_of(body))


async def ask(body: object = None, *, method: str = "POST", raw: bytes = b"") -> tuple[int, Any]:
    api, exchange = probe_api(), asking(method, raw or json.dumps(body).encode())
    await api.answer(exchange.scope, exchange.receive, exchange.send)
    await api.stop()
    return exchange.status, json.loads(exchange.body)


async def test_a_get_describes_the_machine() -> None:
    status, found = await ask(method="GET")

    assert status == 200
    assert found["data_host"] == "127.0.0.1"
    assert found["open_files"] != 0
    assert found["name"]


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        (PUSH, {"problem": "", "first_s": 0.5, "latency_s": None, "bytes_per_s": None, "after_idle_s": None}),
        ({"type": "receive", "seconds": 3}, {"session": "h:1", "address": 4096, "size_bytes": MIB}),
        ({"type": "release", "session": "h:1"}, {"found": True}),
    ],
)
async def test_each_question_has_its_answer(engines: Mock, question: Any, answer: Any) -> None:
    assert await ask(question) == (200, answer)
    assert [name for name, *_ in engines.mock_calls] == [question["type"], "stop"]


@pytest.mark.parametrize(
    "question",
    [
        {},
        {"type": "format disk"},
        {"type": "receive", "seconds": 0},
        {"type": "receive", "seconds": 1e9},
        {**PUSH, "size_bytes": SIZE_BYTES + 1},
        {**PUSH, "idle_s": MAX_IDLE_S + 1},
        {**PUSH, "address": -1},
        {"type": "dial", "address": "x" * 513},
        [],
    ],
)
async def test_what_is_out_of_bounds_is_refused(engines: Mock, question: Any) -> None:
    """A caller with the token cannot keep a node busy for ever either."""
    status, found = await ask(question)

    assert status == 400
    assert "cannot be tried" in found["error"]["message"]
    assert engines.mock_calls == []


def test_a_context_for_dialling_is_opened_once_by_its_first_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until then libzmq has none of the descriptors without which it would end the process."""
    context = Mock()
    monkeypatch.setattr(probe, "Context", context)
    api = probe_api()
    for _ in range(2):
        api.start()

    assert context.mock_calls == [call(), call().socket(zmq.DEALER), call().socket().close()]


async def test_a_long_body_and_another_method_are_refused() -> None:
    assert (await ask(raw=b" " * (MAX_BODY_BYTES + 1)))[0] == 413
    assert (await ask(method="DELETE"))[0] == 405


@pytest.mark.parametrize("error", [ProbeBusyError("others are at it"), ProbeError("no port")])
async def test_an_engine_that_cannot_be_had_is_said(engines: Mock, error: Exception) -> None:
    engines.push.side_effect = error

    status, found = await ask(PUSH)

    assert status == 503
    assert found["error"]["message"] == str(error)


async def test_a_caller_that_leaves_is_not_waited_for(engines: Mock) -> None:
    """A pause of an hour would keep everybody else from pushing."""
    ended = asyncio.Event()

    async def push(order: Any) -> Pushed:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        raise AssertionError

    engines.push = push  # one that takes for ever
    exchange = asking("POST", json.dumps(PUSH).encode())
    exchange.disconnect()

    await probe_api().answer(exchange.scope, exchange.receive, exchange.send)

    assert ended.is_set()
    assert exchange.sent == []


async def test_an_address_that_is_none_is_a_problem_and_no_fault() -> None:
    """What other nodes announce may be anything."""
    assert (await ask({"type": "dial", "address": "nonsense"}))[1]["problem"]
    assert (await ask({"type": "greet", "session": "nonsense"}))[1]["problem"]


@pytest.mark.parametrize(("listens", "problem"), [(True, ""), (False, "is not reached"), (None, "")])
async def test_an_engine_is_reached_if_its_data_port_is(
    monkeypatch: pytest.MonkeyPatch, listens: bool | None, problem: str
) -> None:
    """One that names none has none to try."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = None if listens is None else server.getsockname()[1]
        monkeypatch.setattr(probe, "ask", lambda *_: SimpleNamespace(data_port=port))
        if not listens:
            server.close()
        status, found = await ask({"type": "greet", "session": "127.0.0.1:1"})

    assert (status, found["refused"]) == (200, False)
    assert problem in found["problem"]
    assert bool(problem) == bool(found["problem"])
