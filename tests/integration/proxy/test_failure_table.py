"""Nodes that die in the middle of an answer, and that come back, streamed or not, with one answer or two.

What fails before the first byte: `test_failover.py`, `test_failures.py`. The default request is not greedy: a stream that breaks cannot be resumed, see `test_resume.py` for those that can.
"""

from typing import Literal

import httpx
import pytest

from tests.integration.proxy.test_failures import assert_error, assert_nothing_left
from tests.support.cluster import Cluster, cluster
from tests.support.fake_answers import answer, events
from tests.support.fake_vllm import Fault

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


def good(*, stream: bool, n: int) -> bytes:
    """The answer of a healthy decode node."""
    return b"".join(events(PATH, 3, n=n)) if stream else answer(PATH, 3, n=n)


async def ask(running: Cluster, *, stream: bool, n: int) -> list[httpx.Response]:
    """Ask as often as there may be nodes to choose from, so that the broken one gets its turn."""
    return [await running.complete(stream=stream, n=n) for _ in range(2)]


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
@pytest.mark.parametrize("fault", ["cut", "empty"])
async def test_a_prefill_node_whose_answer_is_not_whole(fault: Fault, *, spare: bool, stream: bool) -> None:
    """Half an answer is none: the prompt is computed elsewhere, if the decode node has not answered by then."""
    async with cluster(prefill=1 + spare) as running:
        running.prefill[0].fault = fault
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
