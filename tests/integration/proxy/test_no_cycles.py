"""What a request is made of goes with its end: none of it waits for a full garbage collection, in which all streams wait."""

import gc
from collections.abc import Awaitable, Callable, Iterator
from operator import not_

import pytest

from baton.proxy.http_server.client_protocol import Writer
from baton.proxy.request.parse import ClientRequest
from tests.integration.proxy.test_first_token import first_event, relaying
from tests.integration.proxy.test_resume import BODIES, PATHS, RANDOM, breaking
from tests.integration.proxy.test_resume import ask as ask_until_broken
from tests.integration.proxy.test_stream_watch import begin, drain, fall_silent, stalling
from tests.support.cluster import COMPLETION, Cluster, cluster, until
from tests.support.fake_vllm import FakeVllm

Left = Callable[[], Awaitable[int]]


@pytest.fixture
def left() -> Iterator[Left]:
    """How much is left of requests that have begun since; no garbage is collected."""

    def requests() -> list[object]:
        return [one for one in gc.get_objects() if type(one) in (ClientRequest, Writer)]  # `isinstance` asks the object

    gc.collect()
    gc.disable()
    others = requests()
    ids = set(map(id, others))

    async def left() -> int:
        return sum(id(one) not in ids for one in requests())

    yield left
    gc.enable()


async def relayed(running: Cluster) -> None:
    for kind in PATHS:
        await running.http.post(PATHS[kind], json={**BODIES[kind], "stream": True})


async def whole(running: Cluster) -> None:
    await running.complete()
    await running.chat()


async def with_a_client_that_leaves(running: Cluster) -> None:
    async with first_event(running, "completion", **RANDOM):
        pass
    running.release()


async def answered_without_its_prefill_node(running: Cluster) -> None:
    running.prefill[0].fault = "hang"
    running.decode[0].recomputes = True
    await running.complete(stream=True)


async def refused(running: Cluster) -> None:
    await running.complete(model="another")


async def passed(running: Cluster) -> None:
    await running.http.post("/tokenize", json={"model": COMPLETION["model"], "prompt": "a"})


@pytest.mark.parametrize(
    "use", [relayed, whole, with_a_client_that_leaves, answered_without_its_prefill_node, refused, passed]
)
async def test_a_request_that_has_ended_is_in_no_reference_cycle(
    use: Callable[[Cluster], Awaitable[None]], left: Left
) -> None:
    """It keeps its body, which may be large: prompts of a long conversation, or images."""
    async with relaying() as running:
        await use(running)

        assert await until(left, not_) == 0


@pytest.mark.parametrize("fails", [fall_silent, drain])
async def test_nor_is_one_that_has_left_a_node(left: Left, fails: Callable[[FakeVllm], None]) -> None:
    async with stalling() as running:
        asked = await begin(running, "chat")
        fails(running.decode[0])
        await asked
        del asked

        assert await until(left, not_) == 0


async def test_nor_is_one_that_would_differ(left: Left) -> None:
    async with breaking() as running:
        running.decode[1].drift, running.decode[1].starts = 1, False
        await ask_until_broken(running, "completion", **RANDOM)

        assert await until(left, not_) == 0


async def test_nor_is_one_that_two_decode_nodes_have_served(left: Left) -> None:
    async with breaking() as running:
        await ask_until_broken(running, "chat", **RANDOM)

        assert await until(left, not_) == 0


async def test_and_one_that_a_decode_node_computed(left: Left) -> None:
    async with cluster(prefill=0) as running:
        await running.complete(stream=True)

        assert await until(left, not_) == 0
