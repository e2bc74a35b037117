"""Pools that hold little more than one long prompt: requests queue, wait for each other, are preempted, and are exact."""

import asyncio

import httpx
import pytest

from tests.e2e.client import difference
from tests.e2e.fidelity import answers, ask_all, choose_prompts
from tests.e2e.stack import FLOAT32, Stack
from tests.e2e.waiting import GIVEN_BACK_WITHIN_S, settle

pytestmark = [pytest.mark.e2e, pytest.mark.exhaustive, pytest.mark.timeout(300)]

TIGHT = ("--kv-cache-memory-bytes", str(20 << 20))  # 40 blocks of 512 KiB; the longest prompt needs 28


def test_tight_pools_on_both_sides_are_exact_and_never_lock(stack: Stack) -> None:
    """E8: D reserves early only while a share of its pool stays free; otherwise for prompts that P has started."""
    prefill = stack.node("prefill", *FLOAT32, *TIGHT, "--max-num-batched-tokens", "256", name="tight-prefill")
    decode = stack.node("decode", *FLOAT32, *TIGHT, name="tight-decode")
    plain = stack.plain(*FLOAT32)
    for server in (prefill, decode, plain):
        server.wait_ready()
    proxy = stack.proxy([prefill], [decode])
    proxy.wait_ready()
    prompts = choose_prompts(16)
    reference = answers(plain.url, stack.model, prompts)

    found = asyncio.run(ask_all(proxy.url, stack.model, prompts, at_once=16))

    for wanted, got in zip(reference, found, strict=True):
        assert not isinstance(got, httpx.HTTPError), got
        assert difference(wanted, got) == ""
    for server in (prefill, decode):
        settle(server, GIVEN_BACK_WITHIN_S)
        print(server.name, server.transfers()["worker"]["totals"], server.transfers()["scheduler"]["totals"])
    stack.stop(proxy, decode, prefill, plain)
