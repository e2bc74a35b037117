"""A prefill node that is killed while nobody but the decode node can notice; kills of all kinds are in `tests/chaos`."""

import asyncio
import time

import httpx
import pytest

from baton.contracts.http import RECOMPUTED
from baton.contracts.kv_transfer import new_transfer_id
from tests.e2e.client import Answer, body_for, complete, difference
from tests.e2e.conftest import Trio
from tests.e2e.stack import FLOAT32, Server, Stack
from tests.e2e.waiting import settle

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

ANSWERED_WITHIN_S = 10.0
UNSEEN_ANSWERED_WITHIN_S = 30.0  # half of that node's `peer_timeout_s`


def _is_pushing(prefill: Server) -> bool:
    workers = [transfer["worker"] for transfer in prefill.transfers()["transfers"] if "worker" in transfer]
    return any(0 < worker["bytes_pushed"] < worker["bytes_expected"] for worker in workers)


async def kill_unseen(stack: Stack, prefill: Server, decode: Server, prompt: list[int]) -> Answer:
    """Send both legs without a proxy, whose prefill leg would break too, and kill P amid the push."""
    transfer_id = new_transfer_id()
    async with httpx.AsyncClient(timeout=UNSEEN_ANSWERED_WITHIN_S) as client:
        (address,) = prefill.info()["control_addresses"]
        first = body_for(stack.model, prompt, max_tokens=1, **stack.leg("prefill", transfer_id=transfer_id))
        prefilling = asyncio.create_task(client.post(f"{prefill.url}/v1/completions", json=first))
        leg = stack.leg("decode", address, transfer_id=transfer_id)
        answer = asyncio.create_task(complete(client, decode.url, stack.model, prompt, **leg))
        while not await asyncio.to_thread(_is_pushing, prefill):
            assert not answer.done(), "the prompt was pushed before the kill"
            await asyncio.sleep(0.002)
        prefill.kill()
        begun = time.monotonic()
        await asyncio.wait((prefilling,))
        assert isinstance(prefilling.exception(), httpx.HTTPError)
        found = await answer
        print(f"answered {time.monotonic() - begun:.2f} s after a kill that only D could notice")
        return found


def test_a_decode_node_that_alone_can_tell_does_not_wait_for_silence(stack: Stack, trio: Trio) -> None:
    """The kernel of a killed P hangs up; D asks, hears nothing, and computes the prompt. Silence would take a minute."""
    prefill = stack.node("prefill", *FLOAT32, "--max-num-batched-tokens", "256", name="doomed-prefill")
    decode = stack.node("decode", *FLOAT32, "--peer-timeout-s", "60", name="patient-decode")
    for server in (prefill, decode):
        server.wait_ready()
    prompt = max(trio.prompts, key=len)

    found = asyncio.run(kill_unseen(stack, prefill, decode, prompt))

    assert difference(trio.reference[trio.prompts.index(prompt)], found) == ""
    assert found.path == RECOMPUTED
    assert "does not answer" in found.reason
    settle(decode, within_s=ANSWERED_WITHIN_S)
    assert decode.transfers()["worker"]["totals"]["fences"] >= 1
