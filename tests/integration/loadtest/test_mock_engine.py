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

SECRET = ClusterSecret(b"a secret for tests only")
ASKED: dict[str, Any] = {"model": "mock", "prompt": "a prompt", "max_tokens": 4}


@asynccontextmanager
async def mock(role: str, *flags: str) -> AsyncIterator[httpx.AsyncClient]:
    """Run a mock as a process; yield a client of it."""
    command = (sys.executable, "-m", "baton.loadtest.mock_engine", "--role", role, *flags)
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    try:
        url = (await asyncio.wait_for(process.stdout.readline(), 20)).decode().strip()
        async with httpx.AsyncClient(base_url=url, timeout=10) as http:
            yield http
    finally:
        process.terminate()
        assert await asyncio.wait_for(process.wait(), 10) == 0


@pytest.fixture
def secret_flags(tmp_path: Path) -> list[str]:
    """Flags that make a mock a Baton node."""
    path = tmp_path / "secret"
    path.write_bytes(SECRET.values[0])
    return ["--secret-file", str(path)]


def signed(role: Any, *, peer: str = "", transfer_id: str = "") -> dict[str, Any]:
    """The parameters of one leg."""
    return sign(TransferParams(transfer_id=transfer_id or new_transfer_id(), role=role, peer=peer), SECRET)


def prefill_leg(**changes: Any) -> dict[str, Any]:
    """A good prefill leg of Baton's proxy."""
    return {**ASKED, "max_tokens": 1, "n": 1, "stream": False, FIELD: signed("prefill"), **changes}


async def counts(http: httpx.AsyncClient) -> dict[str, int]:
    """What the mock has done."""
    return dict((await http.get("/mock/counts")).json())


async def test_a_stream_has_the_tokens_that_were_asked_for_in_events_of_one_size() -> None:
    """N tokens are N events of the size that was set, then `[DONE]`; and N chunks are counted."""
    async with mock("decode", "--chunk-bytes", "300") as http:
        answer = await http.post("/v1/completions", json={**ASKED, "stream": True})
        events = answer.content.split(b"\n\n")

        assert [len(event) + 2 for event in events[:4]] == [300] * 4
        assert events[4:] == [b"data: [DONE]", b""]
        assert (await counts(http))["chunks"] == 4


async def test_tokens_come_at_the_pace_that_was_set() -> None:
    """The first token does not come before the TTFT, the last not before all gaps are over."""
    async with mock("decode", "--ttft-ms", "60", "--itl-ms", "20") as http:
        began_s = asyncio.get_running_loop().time()
        async with http.stream("POST", "/v1/completions", json={**ASKED, "stream": True}) as answer:
            times_s = [asyncio.get_running_loop().time() - began_s async for _ in answer.aiter_raw()]

        assert times_s[0] >= 0.06
        assert times_s[-1] >= 0.06 + 3 * 0.02


async def test_a_chat_streams_its_role_first() -> None:
    """A chat's stream begins with a role, and its tokens are deltas."""
    async with mock("decode") as http:
        asked = {"model": "mock", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2, "stream": True}
        events = (await http.post("/v1/chat/completions", json=asked)).content.split(b"\n\n")

        deltas = [json.loads(event.removeprefix(b"data: "))["choices"][0]["delta"] for event in events[:3]]
        assert deltas == [{"role": "assistant", "content": ""}, {"content": " token"}, {"content": " token"}]


async def test_a_fault_of_status_answers_with_it_and_an_openai_error() -> None:
    """`status` gives the status that was asked for; after `times` requests all is well again."""
    async with mock("decode", "--fault", "status", "--fault-status", "503", "--fault-times", "1") as http:
        bad, good = [await http.post("/v1/completions", json=ASKED) for _ in range(2)]

        assert (bad.status_code, bad.json()["error"]["code"]) == (503, 503)
        assert good.status_code == 200
        assert (await counts(http))["faulted"] == 1


async def test_a_drop_closes_the_connection_without_an_answer() -> None:
    """`drop`: no byte comes."""
    async with mock("decode", "--fault", "drop") as http:
        with pytest.raises((httpx.RemoteProtocolError, httpx.ReadError)):
            await http.post("/v1/completions", json=ASKED)


async def test_a_stall_sends_some_tokens_and_then_nothing() -> None:
    """`stall`: the connection stays open, nothing more comes; a client that leaves is counted."""
    async with mock("decode", "--fault", "stall", "--fault-after", "2") as http:
        got = b""
        with pytest.raises(httpx.ReadTimeout):  # noqa: PT012  # reading is what times out
            asked = {**ASKED, "stream": True}
            async with http.stream("POST", "/v1/completions", json=asked, timeout=0.3) as answer:
                async for piece in answer.aiter_raw():
                    got += piece

        assert got.count(b"data: ") == 2
        async with asyncio.timeout(20):
            while (await counts(http))["cancelled"] != 1:  # noqa: ASYNC110  # it is another process
                await asyncio.sleep(0.01)


@pytest.mark.parametrize("stream", [True, False])
async def test_a_cut_ends_the_connection_in_the_middle(stream: bool) -> None:
    """`cut`: part of the answer comes, and then the connection ends."""
    async with mock("decode", "--fault", "cut", "--fault-after", "2") as http:
        got = b""
        with pytest.raises(httpx.RemoteProtocolError):  # noqa: PT012  # reading is what breaks
            async with http.stream("POST", "/v1/completions", json={**ASKED, "stream": stream}) as answer:
                async for piece in answer.aiter_raw():
                    got += piece

        assert got
        assert b"[DONE]" not in got
        assert (await counts(http))["completed"] == 0


async def test_an_empty_answer_is_a_200_without_a_body() -> None:
    """`empty`: 200, no bytes, a clean end."""
    async with mock("decode", "--fault", "empty") as http:
        answer = await http.post("/v1/completions", json={**ASKED, "stream": True})

        assert (answer.status_code, answer.content) == (200, b"")


async def test_a_fault_can_be_changed_while_the_mock_runs() -> None:
    """`POST /mock/fault` sets a fault; one that there is not is refused."""
    async with mock("decode") as http:
        assert (await http.post("/mock/fault", json={"fault": "status", "status": 429, "times": 1})).status_code == 200
        assert (await http.post("/v1/completions", json=ASKED)).status_code == 429
        assert (await http.post("/v1/completions", json=ASKED)).status_code == 200
        assert (await http.post("/mock/fault", json={"fault": "fire"})).status_code == 400


async def test_a_baton_node_describes_itself_to_whoever_holds_the_secret(secret_flags: list[str]) -> None:
    """`/baton/node` needs the cluster secret's token; a plain vLLM has no such route."""
    token = {"authorization": f"Bearer {SECRET.node_token()}"}
    async with mock("prefill", *secret_flags) as http, mock("prefill") as plain:
        told = (await http.get(NODE_PATH, headers=token)).json()

        assert (told["role"], told["state"], told["served_models"]) == ("prefill", "ready", ["mock"])
        assert (await http.get(NODE_PATH)).status_code == 401
        assert (await http.get(NODE_PATH, headers={"authorization": "Bearer x"})).status_code == 401
        assert (await plain.get(NODE_PATH, headers=token)).status_code == 404
        assert (await http.post(CANCEL_PATH, json={"transfer_ids": ["x"]}, headers=token)).status_code == 400
        assert (await http.post(CANCEL_PATH, json={"transfer_ids": ["0" * 32]}, headers=token)).status_code == 200


@pytest.mark.parametrize(
    "leg",
    [
        ASKED,
        prefill_leg(stream=True),
        prefill_leg(max_tokens=2),
        prefill_leg(logprobs=1),
        prefill_leg(**{FIELD: {"baton": {}}}),
        prefill_leg(**{FIELD: signed("decode", peer="tcp://127.0.0.1:1")}),
    ],
)
async def test_a_baton_prefill_node_refuses_what_no_prefill_leg_is(
    secret_flags: list[str], leg: dict[str, Any]
) -> None:
    """Unsigned, for the other role, streaming, of more than one token: 400."""
    async with mock("prefill", *secret_flags) as http:
        assert (await http.post("/v1/completions", json=prefill_leg())).status_code == 200
        assert (await http.post("/v1/completions", json=leg)).status_code == 400
        assert (await counts(http))["refused"] == 1


async def test_a_baton_node_refuses_internal_headers_and_used_transfer_ids(secret_flags: list[str]) -> None:
    """What a proxy must keep to itself, and a transfer id that came before."""
    params = signed("decode", peer="tcp://127.0.0.1:1")
    async with mock("decode", *secret_flags) as http:
        headers = {"x-baton-path": "local"}
        assert (await http.post("/v1/completions", json=ASKED, headers=headers)).status_code == 400
        once, twice = [await http.post("/v1/completions", json={**ASKED, FIELD: params}) for _ in range(2)]
        assert (once.status_code, twice.status_code) == (200, 400)
        assert (await http.post("/v1/completions", json=ASKED)).status_code == 200
        seen = await counts(http)
        assert (seen["handed_over"], seen["alone"], seen["refused"]) == (1, 1, 2)


async def test_what_a_plain_prefill_node_gives_a_plain_decode_node_takes() -> None:
    """NixlConnector's parameters go from one answer into the next request; if one is lost on the way, it is refused."""
    async with mock("prefill") as prefill, mock("decode") as decode:
        ask = {"do_remote_decode": True, "do_remote_prefill": False}
        params = (await prefill.post("/v1/completions", json={**ASKED, FIELD: ask})).json()[FIELD]

        assert (await decode.post("/v1/completions", json={**ASKED, FIELD: params})).status_code == 200
        lost = {name: value for name, value in params.items() if name != "remote_port"}
        assert (await decode.post("/v1/completions", json={**ASKED, FIELD: lost})).status_code == 400
        assert (await decode.post("/v1/completions", json={**ASKED, FIELD: ask})).status_code == 400
        assert (await counts(decode))["handed_over"] == 1


async def test_mooncakes_parameters_come_from_the_proxy() -> None:
    """With a transfer id a prefill answer gives none, and a decode node needs the engine and its bootstrap address."""
    async with mock("prefill") as prefill, mock("decode") as decode:
        given = {"do_remote_decode": True, "transfer_id": "t"}
        taken = {"do_remote_prefill": True, "transfer_id": "t", "remote_engine_id": "e"}

        assert (await prefill.post("/v1/completions", json={**ASKED, FIELD: given})).json()[FIELD] is None
        assert (await decode.post("/v1/completions", json={**ASKED, FIELD: taken})).status_code == 400
        whole = {**taken, "remote_bootstrap_addr": "http://127.0.0.1:1"}
        assert (await decode.post("/v1/completions", json={**ASKED, FIELD: whole})).status_code == 200


async def test_an_sglang_prefill_leg_gets_one_token_whatever_it_asks() -> None:
    """SGLang's router sends both legs the same body; its prefill servers stop after the first token."""
    async with mock("prefill") as prefill, mock("decode") as decode:
        asked = {**ASKED, "stream": True, "bootstrap_room": 1}
        for http in (prefill, decode):
            assert (await http.post("/v1/completions", json=asked)).status_code == 200

        assert [(await counts(http))["chunks"] for http in (prefill, decode)] == [1, 4]
        assert (await counts(decode))["handed_over"] == 1
