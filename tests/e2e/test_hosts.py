"""Nodes whose two ranks are on two hosts, which share neither a network device nor memory."""

import asyncio
import signal
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from baton.contracts.http import CANCEL_PATH, DISAGGREGATED
from baton.contracts.kv_transfer import Grid, Grids, new_transfer_id
from baton.contracts.secret import generate_secret
from benchmarks.overlap.network import NetworkError
from tests.e2e.client import Answer, body_for, complete, difference
from tests.e2e.conftest import Trio
from tests.e2e.fidelity import answers
from tests.e2e.hosts import COMMON, SpreadNode, TwoHosts, two_hosts
from tests.e2e.stack import Server, Stack
from tests.e2e.waiting import GIVEN_BACK_WITHIN_S, missing_blocks, settle, until

pytestmark = pytest.mark.e2e

PROMPTS = slice(9, 15, 2)  # of 135 to 708 tokens
LONG_ANSWER_TOKENS = 400


@pytest.fixture
def hosts(stack: Stack) -> Iterator[TwoHosts]:
    """Two hosts, with nothing on them."""
    try:
        with two_hosts(stack) as made:
            yield made
    except NetworkError as exc:
        pytest.skip(str(exc))


def served_exactly(trio: Trio, proxy: Server) -> None:
    """Every answer is that of one plain server, with KV from the prefill node."""
    for wanted, got in zip(
        trio.reference[PROMPTS], answers(proxy.url, trio.model, trio.prompts[PROMPTS], 3), strict=True
    ):
        assert difference(wanted, got) == ""
        assert (got.path, got.reason) == (DISAGGREGATED, "")


def hosts_of_ranks(server: Server) -> list[str]:
    """The hosts in a prefill node's control addresses, rank by rank."""
    (of_engine,) = server.info()["control_addresses"]
    return [address.removeprefix("tcp://").rpartition(":")[0] for address in of_engine.split(",")]


def hold_and_cancel(stack: Stack, prefill: Server, prompt: list[int]) -> None:
    """Let a prompt be computed that no decode node asks for, and cancel it: P keeps its blocks until every rank lets go."""
    transfer_id = new_transfer_id()
    leg = stack.leg("prefill", transfer_id=transfer_id, grids=Grids(Grid(tp=2), Grid()))
    prefill.ask("/v1/completions", body_for(stack.model, prompt, max_tokens=1, **leg))
    assert missing_blocks(prefill)
    authorized = {"Authorization": f"Bearer {stack.token}"}
    cancelled = prefill.ask(CANCEL_PATH, {"transfer_ids": [transfer_id]}, authorized).json()
    assert cancelled == {"cancelled": 1, "were_open": 1}
    settle(prefill, GIVEN_BACK_WITHIN_S)


async def answer_despite(loss: SpreadNode, decode: Server, url: str, model: str, prompt: list[int]) -> Answer:
    """Ask, and kill the node's second host as soon as the decode node has heard of it."""
    async with httpx.AsyncClient(timeout=120) as client:
        answer = asyncio.create_task(complete(client, url, model, prompt))
        await until(lambda: decode.transfers()["transfers"])
        await asyncio.to_thread(loss.second.kill)
        return await answer


def test_tensor_parallel_ranks_of_a_prefill_node_on_two_hosts(stack: Stack, trio: Trio, hosts: TwoHosts) -> None:
    """Each rank sends its heads from its own host, and hears of cancels; with one host gone the node is, and no answer."""
    prefill = hosts.spread("prefill", "-tp", "2", "--max-num-batched-tokens", "512")
    decode = hosts.server("decode", 0, *COMMON)
    proxy = stack.proxy([prefill.first], [decode], name="proxy-hosts")

    served_exactly(trio, proxy)

    assert hosts_of_ranks(prefill.first) == [hosts.address(0), hosts.address(1)]
    assert prefill.first.transfers()["worker"]["totals"]["committed"] == 2 * len(
        trio.prompts[PROMPTS]
    )  # a flow of each rank
    hold_and_cancel(stack, prefill.first, [7, *trio.prompts[10]])

    prompt = [9, *trio.prompts[-1]]
    found = asyncio.run(answer_despite(prefill, decode, proxy.url, trio.model, prompt))

    (alone,) = answers(trio.plain.url, trio.model, [prompt])
    assert difference(alone, found) == ""
    assert prefill.ended()[1] == -signal.SIGKILL
    settle(decode, GIVEN_BACK_WITHIN_S)
    assert decode.integrity()["ok"]


@pytest.mark.exhaustive
def test_pipeline_stages_of_a_decode_node_on_two_hosts(stack: Stack, trio: Trio, hosts: TwoHosts) -> None:
    """Each stage takes its layers at its own host, and the last one, which samples, is far; told to stop, all drain together."""
    prefill = hosts.server("prefill", 1, *COMMON)
    decode = hosts.spread("decode", "-pp", "2")
    proxy = stack.proxy([prefill], [decode.first], name="proxy-hosts")

    served_exactly(trio, proxy)

    worker = decode.first.transfers()["worker"]
    assert len(worker["sessions"]) == 2  # one of each rank
    assert {engine.rpartition(":")[0] for engine in worker["engines"]["current"]} == {
        hosts.address(0),
        hosts.address(1),
    }
    assert "baton_token_slots" in decode.first.metrics()  # which the last stage tells

    async def drain() -> Answer:
        async with httpx.AsyncClient(timeout=120) as client:
            prompt, more = trio.prompts[-1], {"max_tokens": LONG_ANSWER_TOKENS}
            answer = asyncio.create_task(complete(client, proxy.url, trio.model, prompt, **more))
            await until(lambda: decode.first.metrics()["vllm:num_requests_running"])
            for server in (decode.first, decode.second):
                assert server.child
                server.child.terminate()
            return await answer

    found = asyncio.run(drain())

    assert len(found.tokens) == LONG_ANSWER_TOKENS
    assert decode.ended() == (0, 0)


def test_hosts_of_a_node_must_hold_one_secret_and_end_together(tmp_path: Path, hosts: TwoHosts) -> None:
    """A host of another cluster is not let in, and neither starts; the others of a first host that is killed end too."""
    secret = tmp_path / "another"
    secret.write_text(generate_secret())
    stranger = hosts.spread("prefill", "-pp", "2", secret_of_second=secret)

    assert all(stranger.ended())
    assert "another cluster secret" in stranger.second.tail(400)
    assert "holds another cluster secret" in stranger.first.tail(400)

    node = hosts.spread("prefill", "-pp", "2")
    node.first.wait_ready()
    node.first.kill()

    assert node.ended() == (-signal.SIGKILL, 1)
    assert "has gone" in node.second.tail(400)
