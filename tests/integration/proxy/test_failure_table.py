"""Every way in which the peers were seen to fail a client, for either role, streamed or not, with one answer or two.

The default request is not greedy: a stream that breaks cannot be resumed, see `test_resume.py` for those that can.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Literal

import httpx
import pytest

from baton.contracts.http import error_body
from tests.integration.proxy.test_failures import assert_error, assert_nothing_left
from tests.support.cluster import Cluster, cluster
from tests.support.fake_answers import answer, events
from tests.support.fake_vllm import FakeVllm

Role = Literal["prefill", "decode"]
PATH = "/v1/completions"
ROLE = pytest.mark.parametrize("role", ["prefill", "decode"])
STREAM = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
N = pytest.mark.parametrize("n", [1, 2], ids=["n1", "n2"])
SPARE = pytest.mark.parametrize("spare", [False, True], ids=["alone", "spare"])
# Every two values of two of the three meet.
CASE = pytest.mark.parametrize(
    ("spare", "n", "stream"),
    [(False, 1, False), (False, 2, True), (True, 1, True), (True, 2, False)],
    ids=["alone-n1-whole", "alone-n2-stream", "spare-n1-stream", "spare-n2-whole"],
)
FAULT = pytest.mark.parametrize("fault", ["refuses", "400", "500", "dies", "empty"])
WAY = {False: "recomputed", True: "disaggregated"}  # after a failed prefill leg, by whether there is a spare node


def good(*, stream: bool, n: int) -> bytes:
    """The answer of a healthy decode node."""
    return b"".join(events(PATH, 3, n=n)) if stream else answer(PATH, 3, n=n)


async def break_node(node: FakeVllm, fault: str) -> None:
    """Let a node fail from now on."""
    if fault == "refuses":
        await node.stop()
    elif fault in ("400", "500"):
        node.fault, node.status = "status", int(fault)
        node.error = error_body("no", code=int(fault))
    else:
        node.fault = "drop" if fault == "dies" else "empty"


@asynccontextmanager
async def broken(role: Role, fault: str, *, spare: bool) -> AsyncIterator[Cluster]:
    """Run a cluster one node of which fails, with or without another one in its role."""
    nodes: dict[str, Any] = {role: 1 + spare}
    async with cluster(probe_interval_s=30.0, **nodes) as running:
        await break_node(getattr(running, role)[0], fault)
        yield running


async def ask(running: Cluster, *, stream: bool, n: int) -> list[httpx.Response]:
    """Ask as often as there may be nodes to choose from, so that the broken one gets its turn."""
    return [await running.complete(stream=stream, n=n) for _ in range(2)]


@FAULT
@CASE
async def test_a_decode_node_that_fails(fault: str, *, spare: bool, n: int, stream: bool) -> None:
    """Another one answers; without one the client gets an error with the right status, never a 200."""
    async with broken("decode", fault, spare=spare) as running:
        got = await ask(running, stream=stream, n=n)
        await assert_nothing_left(running)

    if fault == "400":
        assert sorted(each.status_code for each in got) == ([200, 400] if spare else [400, 400])
        refused = next(each for each in got if each.status_code == 400)
        assert_error(refused, 400)
        assert refused.json() == error_body("no", code=400)
    elif spare:
        assert {(each.status_code, each.content) for each in got} == {(200, good(stream=stream, n=n))}
    else:
        assert_error(got[0], 500 if fault == "500" else 502)
        assert fault != "500" or got[0].json() == error_body("no", code=500)
        assert got[1].status_code in (500, 502, 503)


@FAULT
@CASE
async def test_a_prefill_node_that_fails(fault: str, *, spare: bool, n: int, stream: bool) -> None:
    """Another one takes the prompt, or the decode node does: the client gets its answer in any case."""
    async with broken("prefill", fault, spare=spare) as running:
        got = await ask(running, stream=stream, n=n)
        await assert_nothing_left(running)

    for each in got:
        assert (each.status_code, each.content) == (200, good(stream=stream, n=n))
        if fault not in ("400", "empty"):  # of those, the first is D's to judge, and the second is no failure on P
            expected = {WAY[spare]} if spare or each is got[0] else {"recomputed", "local"}
            assert each.headers["x-baton-path"] in expected


@CASE
async def test_a_decode_node_that_dies_in_the_middle_of_its_answer(*, spare: bool, n: int, stream: bool) -> None:
    """A whole answer is asked for again; a stream ends with an error event, nothing of it doubled and no `[DONE]`."""
    async with cluster(decode=1 + spare, probe_interval_s=30.0) as running:
        running.decode[0].fault, running.decode[0].token_delay_s = "cut", 0.02
        got = await ask(running, stream=stream, n=n)
        await assert_nothing_left(running)

    whole = good(stream=stream, n=n)
    for each in got:
        if not stream and not spare:
            assert each.status_code in (502, 503)
            assert_error(each, each.status_code)
        elif each.content != whole and each.status_code == 200:
            relayed, _, error = each.content.rpartition(b"data: ")
            assert stream
            assert relayed
            assert whole.startswith(relayed)
            assert httpx.Response(200, content=error).json()["error"]["type"] == "upstream_error"
    answered = sum(each.content == whole for each in got)
    assert answered == (0 if not spare else 1 if stream else 2)


@SPARE
@STREAM
async def test_a_prefill_node_that_dies_in_the_middle_of_its_answer(*, spare: bool, stream: bool) -> None:
    """Half an answer is none: the prompt is computed elsewhere, if the decode node has not answered by then."""
    async with cluster(prefill=1 + spare) as running:
        running.prefill[0].fault = "cut"
        got = await ask(running, stream=stream, n=1)
        await assert_nothing_left(running)

    assert {(each.status_code, each.content) for each in got} == {(200, good(stream=stream, n=1))}


@ROLE
@N
@STREAM
async def test_a_node_that_comes_back_after_an_outage(role: Role, *, n: int, stream: bool) -> None:
    """It is used again without help, and its outage was not held against its partner."""
    async with cluster() as running:
        node, partner = running.decode[0], running.prefill[0]
        if role == "prefill":
            node, partner = partner, node
        await node.stop()
        during = await running.complete(stream=stream, n=n)

        async def partner_state() -> bool:
            nodes = (await running.http.get("/ready")).json()["nodes"]
            return any(each["url"] == partner.url and each["state"] == "ready" for each in nodes)

        assert await partner_state()
        await node.start()
        await running.until_ready()
        after = await running.complete(stream=stream, n=n)

    assert during.status_code == 200 if role == "prefill" else during.status_code in (502, 503)
    assert (after.status_code, after.content) == (200, good(stream=stream, n=n))
    assert after.headers["x-baton-path"] == "disaggregated"
