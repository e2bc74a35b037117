"""A prefill node that is killed costs a recomputation, never a wrong token, and comes back without help."""

import asyncio
import time

import httpx
import pytest

from baton.contracts.http import DISAGGREGATED, RECOMPUTED
from baton.contracts.kv_transfer import FIELD, Role, TransferParams, new_transfer_id, sign
from baton.contracts.secret import read_secret
from tests.e2e.client import Answer, body_for, complete, difference
from tests.e2e.conftest import Trio
from tests.e2e.fidelity import answers
from tests.e2e.stack import FLOAT32, Server, Stack
from tests.e2e.waiting import settle

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

ANSWERED_WITHIN_S = 10.0
PAIRED_AGAIN_WITHIN_S = 15.0
UNSEEN_ANSWERED_WITHIN_S = 30.0  # half of that node's `peer_timeout_s`


async def kill_during_push(trio: Trio, prompt: list[int]) -> Answer:
    """Ask for a long prompt and kill the prefill node once some of its KV, but not all, has been pushed."""
    async with httpx.AsyncClient(timeout=60) as client:
        answer = asyncio.create_task(complete(client, trio.proxy.url, trio.model, prompt))
        while not await asyncio.to_thread(_is_pushing, trio.prefill):
            assert not answer.done(), "the prompt was pushed before the kill"
            await asyncio.sleep(0.002)
        trio.prefill.kill()
        begun = time.monotonic()
        found = await answer
        took_s = time.monotonic() - begun
        print(f"answered {took_s:.2f} s after the kill")
        assert took_s < ANSWERED_WITHIN_S
        return found


def _is_pushing(prefill: Server) -> bool:
    workers = [transfer["worker"] for transfer in prefill.transfers()["transfers"] if "worker" in transfer]
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


async def kill_unseen(stack: Stack, prefill: Server, decode: Server, prompt: list[int]) -> Answer:
    """Send both legs without a proxy, whose prefill leg would break too, and kill P amid the push."""
    secret, transfer_id = read_secret(stack.secret_file), new_transfer_id()

    def leg(role: Role, peer: str) -> dict[str, object]:
        return {FIELD: sign(TransferParams(transfer_id=transfer_id, role=role, peer=peer), secret)}

    async with httpx.AsyncClient(timeout=UNSEEN_ANSWERED_WITHIN_S) as client:
        (address,) = prefill.info()["control_addresses"]
        first = body_for(stack.model, prompt, max_tokens=1, **leg("prefill", ""))
        prefilling = asyncio.create_task(client.post(f"{prefill.url}/v1/completions", json=first))
        answer = asyncio.create_task(complete(client, decode.url, stack.model, prompt, **leg("decode", address)))
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
    decode.stop()
