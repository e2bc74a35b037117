"""Every node is replaced while clients keep asking: nobody notices."""

import asyncio
import time
from collections.abc import Callable, Sequence
from functools import partial

import httpx
import pytest

from baton.contracts.http import DISAGGREGATED
from tests.e2e.client import Answer, complete, difference
from tests.e2e.fidelity import answers, choose_prompts
from tests.e2e.stack import FLOAT32, Server, Stack

pytestmark = [pytest.mark.e2e, pytest.mark.exhaustive, pytest.mark.slow, pytest.mark.timeout(240)]

CLIENTS = 4
GONE_WITHIN_S = 30.0
READY_WITHIN_S = 60.0


def state_of(proxy: Server, node: Server) -> str:
    """What the proxy thinks of a node."""
    nodes = proxy.http.get(proxy.url + "/ready").json()["nodes"]
    return next(str(each["state"]) for each in nodes if each["url"] == node.url)


def replace(proxy: Server, node: Server) -> None:
    """SIGTERM, wait for the end, start again, wait until the proxy uses it."""
    assert node.child is not None
    began_s = time.monotonic()
    node.child.terminate()
    status = node.child.wait(GONE_WITHIN_S)
    gone_s = time.monotonic() - began_s
    assert status == 0, node.tail()
    node.spawn()
    node.wait_ready()
    deadline_s = time.monotonic() + READY_WITHIN_S
    while state_of(proxy, node) != "ready":
        assert time.monotonic() < deadline_s
        time.sleep(0.1)
    print(f"{node.name}: gone after {gone_s:.1f} s, in use again after {time.monotonic() - began_s:.1f} s")


async def ask_until(
    stop: asyncio.Event, url: str, model: str, prompts: Sequence[list[int]]
) -> list[tuple[int, Answer]]:
    """Ask one prompt after the other; the first failure is raised."""
    found: list[tuple[int, Answer]] = []
    async with httpx.AsyncClient(timeout=60) as client:
        while not stop.is_set():
            index = len(found) % len(prompts)
            found.append((index, await complete(client, url, model, prompts[index])))
    return found


async def ask_while(
    acts: Sequence[Callable[[], None]], proxy: Server, model: str, prompts: Sequence[list[int]]
) -> list[tuple[int, Answer]]:
    """Do one thing after the other, each in a thread, while clients ask; return all answers."""
    stop = asyncio.Event()
    clients = [asyncio.create_task(ask_until(stop, proxy.url, model, prompts)) for _ in range(CLIENTS)]
    try:
        for act in acts:
            await asyncio.to_thread(act)
    finally:
        stop.set()
        found = await asyncio.gather(*clients)
    return [answer for answers_of_one in found for answer in answers_of_one]


def test_a_rolling_restart_under_load_fails_no_request(stack: Stack) -> None:
    """Two nodes of each role, each drained by SIGTERM and started again; every answer is there and right."""
    prefill = [stack.node("prefill", *FLOAT32, name=f"rolling-prefill-{number}") for number in range(2)]
    decode = [stack.node("decode", *FLOAT32, name=f"rolling-decode-{number}") for number in range(2)]
    nodes = [*prefill, *decode]
    for node in nodes:
        node.wait_ready()
    proxy = stack.proxy(prefill, decode, name="rolling-proxy")
    proxy.wait_ready()
    prompts = choose_prompts(8)
    reference = answers(proxy.url, stack.model, prompts)

    replacing = [partial(replace, proxy, node) for node in nodes]
    found = asyncio.run(ask_while(replacing, proxy, stack.model, prompts))

    paths = [answer.path for _, answer in found]
    counted = {path: paths.count(path) for path in sorted(set(paths))}
    print(f"{len(found)} requests: {counted}")
    assert [difference(reference[index], answer) for index, answer in found] == [""] * len(found)
    assert counted[DISAGGREGATED] > len(found) / 2
    stack.stop(proxy, *nodes)
