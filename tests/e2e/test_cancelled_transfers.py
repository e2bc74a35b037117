"""A client that leaves between the legs: P has computed its prompt, D has not asked for it yet, or never will. Where D has no room: test_chaos.py."""

import asyncio
import signal
from collections.abc import Callable

import httpx
import pytest

from tests.e2e.client import body_for, difference
from tests.e2e.conftest import Trio
from tests.e2e.fidelity import answers
from tests.e2e.stack import Server, Stack
from tests.e2e.valve import Valve
from tests.e2e.waiting import GIVEN_BACK_WITHIN_S, settle, until

pytestmark = pytest.mark.e2e


def held(server: Server) -> list[str]:
    """Transfers whose prompt is complete and keeps its blocks for a decode node."""
    transfers = server.transfers()["transfers"]
    return [t["transfer_id"] for t in transfers if t.get("scheduler", {}).get("state") == "held"]


async def leave_when(condition: Callable[[], object], url: str, body: dict[str, object]) -> None:
    """Start a request, and close its connection once something holds."""
    async with httpx.AsyncClient(timeout=60) as client:
        request = asyncio.create_task(client.post(f"{url}/v1/completions", json=body))
        await until(condition)
        assert not request.done()
        request.cancel()
        await asyncio.wait((request,))


def test_a_prompt_that_no_decode_node_ever_hears_of(stack: Stack, trio: Trio) -> None:
    """I5: its decode leg was swallowed on the way, so only the proxy can tell P. Its time-out is much longer."""
    with Valve(trio.decode.url) as valve:
        proxy = stack.proxy([trio.prefill], [valve], name="proxy-valve")
        before = trio.prefill.transfers()["worker"]["totals"]["cancelled"]
        valve.shut = True
        body = body_for(trio.model, [6, *trio.prompts[14]], stream=True)

        asyncio.run(leave_when(lambda: held(trio.prefill), proxy.url, body))

        took_s = settle(trio.prefill, GIVEN_BACK_WITHIN_S)
        print(f"given back after {took_s:.2f} s")
        assert valve.swallowed == 1
        assert trio.prefill.transfers()["worker"]["totals"]["cancelled"] == before + 1
        assert trio.prefill.transfers()["transfers"] == []
        valve.shut = False
        (answer,) = answers(proxy.url, trio.model, [trio.prompts[3]])
        assert difference(trio.reference[3], answer) == ""
        stack.stop(proxy)


def test_a_prompt_whose_decode_node_was_stopped(trio: Trio) -> None:
    """P is told while D cannot read its leg; when D goes on, the closed connection is all that it needs to know."""
    assert trio.decode.child
    before = trio.decode.transfers()["scheduler"]["totals"]
    body = body_for(trio.model, [7, *trio.prompts[14]], stream=True)
    trio.decode.child.send_signal(signal.SIGSTOP)  # its API process alone
    try:
        asyncio.run(leave_when(lambda: held(trio.prefill), trio.proxy.url, body))
        settle(trio.prefill, GIVEN_BACK_WITHIN_S)
    finally:
        trio.decode.child.send_signal(signal.SIGCONT)

    settle(trio.decode, GIVEN_BACK_WITHIN_S)
    print(before, trio.decode.transfers()["scheduler"]["totals"])
    assert trio.decode.transfers()["transfers"] == []
    trio.proxy.wait_ready()  # D was lost for a moment
    (answer,) = answers(trio.proxy.url, trio.model, [trio.prompts[4]])
    assert difference(trio.reference[4], answer) == ""
