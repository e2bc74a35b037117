import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from baton.contracts.http import CANCEL_PATH, NODE_PATH
from baton.contracts.kv_transfer import FIELD, TransferParams, new_transfer_id, sign
from baton.contracts.secret import ClusterSecret
from baton.loadtest.mock_engine.connection import Connection
from baton.loadtest.mock_engine.engine import MockEngine
from baton.loadtest.mock_engine.settings import Fault, FaultSetting, Settings
from baton.loadtest.mock_engine.wheel import Ticker

SECRET = ClusterSecret(b"a secret for tests only")
TOKEN = {"authorization": f"Bearer {SECRET.node_token()}"}
COMPLETIONS = "/v1/completions"
ASKED: dict[str, Any] = {"model": "mock", "prompt": "a prompt", "max_tokens": 4}
UNREADABLE = (b"{", b'{"fault": "\xff"}', b'{"more": ' + b"[" * 100_000)


@asynccontextmanager
async def mock(
    role: Any, secret: ClusterSecret | None = None, *, fault: Fault = Fault.NONE
) -> AsyncIterator[httpx.AsyncClient]:
    """Serve as a mock, whose faults come after two tokens; yield a client of it."""
    settings = Settings(role=role, fault=FaultSetting(fault=fault, after_tokens=2))
    engine = MockEngine(settings, Ticker(settings.tick_s), secret, 1)
    server = await asyncio.get_running_loop().create_server(lambda: Connection(engine), "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server, httpx.AsyncClient(base_url=url, timeout=10) as http:
        yield http


def signed(role: Any, *, peer: str = "") -> dict[str, Any]:
    return sign(TransferParams(transfer_id=new_transfer_id(), role=role, peer=peer), SECRET)


async def counts(http: httpx.AsyncClient) -> dict[str, int]:
    return dict((await http.get("/mock/counts")).json())


async def read(http: httpx.AsyncClient, *, stream: bool, timeout_s: float = 10) -> tuple[bytes, Exception | None]:
    """What came of an answer, and how it broke."""
    got = b""
    try:
        asked = {**ASKED, "stream": stream}
        async with http.stream("POST", COMPLETIONS, json=asked, timeout=timeout_s) as answer:
            async for piece in answer.aiter_raw():
                got += piece
    except httpx.TransportError as exc:
        return got, exc
    return got, None


async def test_the_command_serves_as_it_was_told(tmp_path: Path) -> None:
    """A fault, once; then a token every 20 ms in events of one size, then `[DONE]`. SIGTERM ends it well."""
    secret = tmp_path / "secret"
    secret.write_bytes(SECRET.values[0])
    command = [sys.executable, "-m", "baton.loadtest.mock_engine", "--role", "decode", "--secret-file", str(secret)]
    command += ["--ttft-ms", "60", "--itl-ms", "20", "--chunk-bytes", "300"]
    command += ["--fault", "status", "--fault-status", "503", "--fault-times", "1"]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    url = (await asyncio.wait_for(process.stdout.readline(), 20)).decode().strip()
    async with httpx.AsyncClient(base_url=url, timeout=10) as http:
        bad = await http.post(COMPLETIONS, json=ASKED)
        began_s = asyncio.get_running_loop().time()
        async with http.stream("POST", COMPLETIONS, json={**ASKED, "stream": True}) as answer:
            arrived = [(asyncio.get_running_loop().time() - began_s, piece) async for piece in answer.aiter_raw()]
        seen = await counts(http)
        assert (await http.get(NODE_PATH)).status_code == 401
    process.terminate()

    assert await asyncio.wait_for(process.wait(), 10) == 0
    assert (bad.status_code, bad.json()["error"]["code"]) == (503, 503)
    events = b"".join(piece for _, piece in arrived).split(b"\n\n")
    assert [len(event) + 2 for event in events[:4]] == [300] * 4
    assert events[4:] == [b"data: [DONE]", b""]
    assert arrived[0][0] > 0.05  # a timer of the event loop may be early by its clock's resolution
    assert arrived[-1][0] > 0.05 + 3 * 0.02
    assert (seen["faulted"], seen["chunks"]) == (1, 4)


@pytest.mark.parametrize(
    ("fault", "stream", "tokens", "broken"),
    [
        (Fault.DROP, False, 0, (httpx.RemoteProtocolError, httpx.ReadError)),
        (Fault.STALL, True, 2, httpx.ReadTimeout),
        (Fault.CUT, True, 2, httpx.RemoteProtocolError),
        (Fault.CUT, False, 0, httpx.RemoteProtocolError),
        (Fault.EMPTY, True, 0, type(None)),
    ],
)
async def test_a_fault_breaks_an_answer_as_its_name_says(fault: Fault, stream: bool, tokens: int, broken: Any) -> None:
    """No byte, some tokens and then nothing, the end in the middle, or 200 without a body; nothing broken is completed."""
    async with mock("decode", fault=fault) as http:
        got, error = await read(http, stream=stream, timeout_s=0.3 if fault is Fault.STALL else 10)

        assert isinstance(error, broken)
        assert got.count(b"data: ") == tokens
        assert bool(got) is (fault in (Fault.CUT, Fault.STALL))
        assert b"[DONE]" not in got
        async with asyncio.timeout(20):
            while fault is Fault.STALL and (await counts(http))["cancelled"] != 1:  # noqa: ASYNC110  # it is HTTP
                await asyncio.sleep(0.01)
        assert (await counts(http))["completed"] == (fault is Fault.EMPTY)


async def test_a_fault_can_be_changed_while_the_mock_runs() -> None:
    """`POST /mock/fault` sets a fault; one that there is not is refused. A chat's stream begins with a role."""
    async with mock("decode") as http:
        chat = {"model": "mock", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2, "stream": True}
        events = (await http.post("/v1/chat/completions", json=chat)).content.split(b"\n\n")
        deltas = [json.loads(event.removeprefix(b"data: "))["choices"][0]["delta"] for event in events[:3]]
        assert deltas == [{"role": "assistant", "content": ""}, {"content": " token"}, {"content": " token"}]
        assert (await http.post("/mock/fault", json={"fault": "status", "status": 429, "times": 1})).status_code == 200
        assert (await http.post(COMPLETIONS, json=ASKED)).status_code == 429
        assert (await http.post(COMPLETIONS, json=ASKED)).status_code == 200
        assert (await http.post("/mock/fault", json={"fault": "fire"})).status_code == 400
        for content in UNREADABLE:
            assert "no fault: " in (await http.post("/mock/fault", content=content)).text


async def test_a_baton_node_tells_only_a_client_that_holds_the_secret() -> None:
    """`/baton/node` and `/baton/cancel` need the cluster secret's token; a plain vLLM has no such routes."""
    async with mock("prefill", SECRET) as http, mock("prefill") as plain:
        told = (await http.get(NODE_PATH, headers=TOKEN)).json()

        assert (told["role"], told["state"], told["served_models"]) == ("prefill", "ready", ["mock"])
        assert (await http.get(NODE_PATH, headers={"authorization": "Bearer x"})).status_code == 401
        assert (await plain.get(NODE_PATH, headers=TOKEN)).status_code == 404
        for transfer_id, status in (("x", 400), ("0" * 32, 200)):
            asked = {"transfer_ids": [transfer_id]}
            assert (await http.post(CANCEL_PATH, json=asked, headers=TOKEN)).status_code == status
        for content in UNREADABLE:
            assert "not a list" in (await http.post(CANCEL_PATH, content=content, headers=TOKEN)).text


async def test_a_baton_node_refuses_what_no_proxy_sends() -> None:
    """A prefill node: unsigned legs, those for the other role, streaming ones, those of more than one token.

    A decode node: headers that a proxy keeps to itself, and a transfer id that came before.
    """
    params = signed("decode", peer="tcp://127.0.0.1:1")
    leg = {**ASKED, "max_tokens": 1, "n": 1, "stream": False, FIELD: signed("prefill")}
    wrong: list[dict[str, Any]] = [
        {"stream": True},
        {"max_tokens": 2},
        {"logprobs": 1},
        {FIELD: {"baton": {}}},
        {FIELD: {"baton": "x"}},
        {FIELD: params},
    ]
    async with mock("prefill", SECRET) as http:
        for body, status in ((leg, 200), (ASKED, 400), *(({**leg, **changes}, 400) for changes in wrong)):
            assert (await http.post(COMPLETIONS, json=body)).status_code == status
        assert (await counts(http))["refused"] == 7
    async with mock("decode", SECRET) as http:
        headers = {"x-baton-path": "local"}
        assert (await http.post(COMPLETIONS, json=ASKED, headers=headers)).status_code == 400
        for body, status in (({**ASKED, FIELD: params}, 200), ({**ASKED, FIELD: params}, 400), (ASKED, 200)):
            assert (await http.post(COMPLETIONS, json=body)).status_code == status
        seen = await counts(http)
        assert (seen["handed_over"], seen["alone"], seen["refused"]) == (1, 1, 2)


async def test_nodes_of_other_connectors_take_their_parameters() -> None:
    """NixlConnector's go from one answer into the next request; if one is lost on the way, it is refused.

    Mooncake's come from the proxy: a prefill answer gives none, a decode node needs the engine and its bootstrap address.
    SGLang's router sends both legs the same body; its prefill servers stop after the first token.
    """
    async with mock("prefill") as prefill, mock("decode") as decode:

        async def status(params: dict[str, Any]) -> int:
            return (await decode.post(COMPLETIONS, json={**ASKED, FIELD: params})).status_code

        ask = {"do_remote_decode": True, "do_remote_prefill": False}
        params = (await prefill.post(COMPLETIONS, json={**ASKED, FIELD: ask})).json()[FIELD]
        lost = {name: value for name, value in params.items() if name != "remote_port"}
        assert [await status(each) for each in (params, lost, ask)] == [200, 400, 400]
        assert (await counts(decode))["handed_over"] == 1

        given = {"do_remote_decode": True, "transfer_id": "t"}
        taken = {"do_remote_prefill": True, "transfer_id": "t", "remote_engine_id": "e"}
        assert (await prefill.post(COMPLETIONS, json={**ASKED, FIELD: given})).json()[FIELD] is None
        assert await status(taken) == 400
        assert await status({**taken, "remote_bootstrap_addr": "http://127.0.0.1:1"}) == 200

        before = [(await counts(http))["chunks"] for http in (prefill, decode)]
        for http in (prefill, decode):
            asked = {**ASKED, "stream": True, "bootstrap_room": 1}
            assert (await http.post(COMPLETIONS, json=asked)).status_code == 200
        after = [(await counts(http))["chunks"] for http in (prefill, decode)]
        assert [new - old for new, old in zip(after, before, strict=True)] == [1, 4]
        assert (await counts(decode))["handed_over"] == 3
