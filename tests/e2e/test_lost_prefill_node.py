"""A prefill node that is killed costs a recomputation, never a wrong token, and comes back without help."""

import asyncio
import time

import httpx
import pytest

from contracts.http import DISAGGREGATED, RECOMPUTED
from tests.e2e.client import Answer, complete, difference
from tests.e2e.conftest import Trio
from tests.e2e.fidelity import answers
from tests.e2e.test_leaving_clients import settle

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

ANSWERED_WITHIN_S = 10.0
PAIRED_AGAIN_WITHIN_S = 15.0


async def kill_during_push(trio: Trio, prompt: list[int]) -> Answer:
    """Ask for a long prompt and kill the prefill node once some of its KV, but not all, has been pushed."""
    async with httpx.AsyncClient(timeout=60) as client:
        answer = asyncio.create_task(complete(client, trio.proxy.url, trio.model, prompt))
        while not await asyncio.to_thread(_is_pushing, trio):
            assert not answer.done(), "the prompt was pushed before the kill"
            await asyncio.sleep(0.002)
        trio.prefill.kill()
        begun = time.monotonic()
        found = await answer
        took_s = time.monotonic() - begun
        print(f"answered {took_s:.2f} s after the kill")
        assert took_s < ANSWERED_WITHIN_S
        return found


def _is_pushing(trio: Trio) -> bool:
    workers = [transfer["worker"] for transfer in trio.prefill.transfers()["transfers"] if "worker" in transfer]
    return any(0 < worker["bytes_pushed"] < worker["bytes_expected"] for worker in workers)


def test_kill_during_a_push_is_recomputed_and_fenced(trio: Trio) -> None:
    """The client gets the exact answer, D fences and returns the blocks, and a restarted node is used again."""
    prompt = max(trio.prompts, key=len)
    reference = trio.reference[trio.prompts.index(prompt)]

    found = asyncio.run(kill_during_push(trio, prompt))

    assert difference(reference, found) == ""
    assert found.path == RECOMPUTED
    settle(trio.decode, within_s=ANSWERED_WITHIN_S)
    assert trio.decode.transfers()["worker"]["totals"]["fences"] >= 1

    trio.prefill.spawn()
    trio.prefill.wait_ready()
    deadline = time.monotonic() + PAIRED_AGAIN_WITHIN_S
    path = ""
    while path != DISAGGREGATED and time.monotonic() < deadline:
        (again,) = answers(trio.proxy.url, trio.model, [trio.prompts[12]])
        assert difference(trio.reference[12], again) == ""
        path = again.path
        time.sleep(0.2)
    assert path == DISAGGREGATED
