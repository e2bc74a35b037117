"""A decode node is added and another one taken away while clients keep asking: nobody notices."""

import asyncio
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from baton.contracts.http import DISAGGREGATED
from tests.e2e.client import Answer, difference
from tests.e2e.fidelity import answers, choose_prompts
from tests.e2e.stack import FLOAT32, Server, Stack
from tests.e2e.test_rolling_restart import GONE_WITHIN_S, READY_WITHIN_S, ask_until

pytestmark = [pytest.mark.e2e, pytest.mark.exhaustive, pytest.mark.slow, pytest.mark.timeout(400)]

CLIENTS = 4
ADMIN_TOKEN = "an admin token for tests"


def ask_admin(proxy: Server, method: str, path: str, **more: object) -> dict[str, object]:
    """Ask the proxy's admin API."""
    headers = {"authorization": f"Bearer {ADMIN_TOKEN}"}
    answer = proxy.http.request(method, proxy.url + path, headers=headers, **more)  # type: ignore[arg-type]
    answer.raise_for_status()
    body: dict[str, object] = answer.json()
    return body


def wait_for(condition: Callable[[], bool]) -> None:
    """Poll until something holds."""
    deadline_s = time.monotonic() + READY_WITHIN_S
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.1)


def loaded(node: Server) -> int:
    """How many requests a node has, as it says."""
    load = node.info()["load"]
    assert isinstance(load["running"], int)
    assert 0 <= load["kv_usage"] <= 1
    return int(load["requests"])


def exchange(proxy: Server, joining: Server, leaving: Server) -> None:
    """Start a node and make it a member; when it has work, remove another one and stop it."""
    assert leaving.child is not None
    joining.wait_ready()
    ask_admin(proxy, "POST", "/admin/nodes", json={"url": joining.url, "role": "decode"})
    wait_for(lambda: loaded(joining) > 0)
    ask_admin(proxy, "DELETE", "/admin/nodes", params={"url": leaving.url})
    leaving.child.terminate()
    assert leaving.child.wait(GONE_WITHIN_S) == 0, leaving.tail()


async def exchange_under_load(
    proxy: Server, joining: Server, leaving: Server, model: str, prompts: Sequence[list[int]]
) -> list[tuple[int, Answer]]:
    """Do so while clients ask; return all answers."""
    stop = asyncio.Event()
    clients = [asyncio.create_task(ask_until(stop, proxy.url, model, prompts)) for _ in range(CLIENTS)]
    try:
        await asyncio.to_thread(exchange, proxy, joining, leaving)
        await asyncio.sleep(2.0)  # some more requests with the new nodes alone
    finally:
        stop.set()
        found = await asyncio.gather(*clients)
    return [answer for answers_of_one in found for answer in answers_of_one]


def test_a_decode_node_is_exchanged_under_load_and_no_request_fails(stack: Stack, tmp_path: Path) -> None:
    """Through the admin API of a proxy with two workers; every answer is there and right."""
    prefill = stack.node("prefill", *FLOAT32, name="scaled-prefill")
    decode = [stack.node("decode", *FLOAT32, name=f"scaled-decode-{number}") for number in range(2)]
    for node in (prefill, *decode):
        node.wait_ready()
    token = tmp_path / "admin"
    token.write_text(ADMIN_TOKEN)
    proxy = stack.proxy([prefill], decode, "--workers", "2", "--admin-token-file", str(token), name="scaled-proxy")
    proxy.wait_ready()
    prompts = choose_prompts(8)
    reference = answers(proxy.url, stack.model, prompts)
    third = stack.node("decode", *FLOAT32, name="scaled-decode-2")

    found = asyncio.run(exchange_under_load(proxy, third, decode[0], stack.model, prompts))

    paths = [answer.path for _, answer in found]
    print(f"{len(found)} requests: { {path: paths.count(path) for path in sorted(set(paths))} }")
    assert [difference(reference[index], answer) for index, answer in found] == [""] * len(found)
    assert paths.count(DISAGGREGATED) > len(found) / 2
    wait_for(lambda: loaded(third) == loaded(prefill) == 0)
    stack.stop(proxy, prefill, decode[1], third)
