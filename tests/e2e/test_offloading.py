"""Baton's connector beside vLLM's OffloadingConnector, on both nodes, in pools that hold little more than one prompt.

The connectors, vLLM's MultiConnector and its schedulers are the real ones. Only the copies between device and host are
not: vLLM makes them on CUDA alone, so `LateCopies` makes them here, later than a device would.
"""

import asyncio
import json
from collections.abc import Iterator

import httpx
import pytest

from baton.contracts.http import DISAGGREGATED
from tests.e2e.client import body_for, difference
from tests.e2e.conftest import Trio
from tests.e2e.fidelity import answers, ask_all
from tests.e2e.stack import FLOAT32, Server, Stack
from tests.e2e.waiting import GIVEN_BACK_WITHIN_S, settle

pytestmark = pytest.mark.e2e

TIGHT = ("--kv-cache-memory-bytes", str(8 << 20), "--max-model-len", "1536")  # 16 blocks of 512 KiB
PROMPTS = slice(14, 17)  # of 708, 964 and 1,353 tokens: the longest needs 11 blocks
BESIDE = [{"kv_connector": "OffloadingConnector", "kv_connector_extra_config": {"cpu_bytes_to_use": 200 << 20}}]
LOAD_AFTER_S = 0.3  # a push that did not wait for it would send what the blocks held before
STORE_AFTER_S = {"prefill": 0.05, "decode": 3.0}  # on D: long after the blocks have been given to the next prompt
BLOCK_TOKENS = 128
LOADED = "vllm:kv_offload_load_bytes_total"
STORED = "vllm:kv_offload_store_bytes_total"


class Offloading:
    """A pair of which either node offloads, and long prompts with their answers."""

    def __init__(self, stack: Stack, trio: Trio) -> None:
        self.model = stack.model
        self.plain = trio.plain
        self.prefill = self._node(stack, "prefill", "--max-num-batched-tokens", "256")
        self.decode = self._node(stack, "decode")
        self.proxy = stack.proxy([self.prefill], [self.decode])
        self.prompts, self.reference = trio.prompts[PROMPTS], trio.reference[PROMPTS]

    def through_the_proxy(self, index: int) -> None:
        """Ask for a prompt; it must travel, and be exact."""
        (answer,) = answers(self.proxy.url, self.model, [self.prompts[index]])
        assert (answer.path, difference(self.reference[index], answer)) == (DISAGGREGATED, "")

    @staticmethod
    def _node(stack: Stack, role: str, *flags: str) -> Server:
        return stack.node(
            role,
            *FLOAT32,
            *TIGHT,
            *flags,
            *("--kv-verify", "full"),
            *("--beside", json.dumps(BESIDE)),
            name=f"offloading-{role}",
            target="tests.e2e.targets:offloading_node",
            kwargs={"role": role, "store_after_s": STORE_AFTER_S[role], "load_after_s": LOAD_AFTER_S},
        )


@pytest.fixture(scope="module")
def pair(stack: Stack, trio: Trio) -> Iterator[Offloading]:
    """Servers that the tests of this file share."""
    with stack.stopping():
        yield Offloading(stack, trio)


def loaded(server: Server) -> float:
    """Bytes that a node has taken back from its host."""
    return server.metrics().get(LOADED, 0.0)


def test_a_prefix_that_the_prefill_node_loads_from_its_host_is_pushed_when_it_is_there(pair: Offloading) -> None:
    """Others have driven the prompt from P's pool: P loads it and computes the rest, D gets all of it, and it is exact."""
    for index in (0, 1, 2):
        pair.through_the_proxy(index)
    before = loaded(pair.prefill)

    pair.through_the_proxy(0)

    whole_blocks = (len(pair.prompts[0]) - 1) // BLOCK_TOKENS
    assert loaded(pair.prefill) - before == whole_blocks * (512 << 10)


def test_another_prompt_with_a_stored_prefix_is_exact(pair: Offloading) -> None:
    """The beginning comes from P's host, the end is computed, and both travel."""
    shared = pair.prompts[1][: len(pair.prompts[1]) // 2]
    prompt = [*shared, *pair.prompts[2][:300]]
    (reference,) = answers(pair.plain.url, pair.model, [prompt])
    before = loaded(pair.prefill)

    (answer,) = answers(pair.proxy.url, pair.model, [prompt])

    assert (answer.path, difference(reference, answer)) == (DISAGGREGATED, "")
    assert loaded(pair.prefill) - before == len(shared) // BLOCK_TOKENS * (512 << 10)


def test_the_decode_node_keeps_on_its_host_what_arrived_and_not_what_came_after(pair: Offloading) -> None:
    """A prompt's blocks go to the next one before they have been copied; what D loads later is the first one's KV."""
    for index in (0, 1, 2):
        pair.through_the_proxy(index)
    before = loaded(pair.decode)

    for index in (0, 1):
        (answer,) = answers(pair.decode.url, pair.model, [pair.prompts[index]])  # no transfer: D is on its own
        assert difference(pair.reference[index], answer) == ""

    assert loaded(pair.decode) > before


def test_a_client_that_leaves_while_the_prefill_node_loads_costs_nothing(pair: Offloading) -> None:
    """The blocks stay where they are until the load has ended; then they come back, and the prompt can be asked again."""
    for index in (1, 2):
        pair.through_the_proxy(index)  # so that P must load the first one

    with pytest.raises(httpx.ReadTimeout):
        httpx.post(
            f"{pair.proxy.url}/v1/completions", json=body_for(pair.model, pair.prompts[0]), timeout=LOAD_AFTER_S / 2
        )

    for server in (pair.prefill, pair.decode):
        settle(server, GIVEN_BACK_WITHIN_S)
    pair.through_the_proxy(0)


def test_many_at_once_are_exact_and_never_lock(pair: Offloading, trio: Trio) -> None:
    """Ten prompts queue for two small pools, are preempted, stored and loaded: twice, so that much of it is on the hosts."""
    some = slice(7, PROMPTS.stop)
    for _ in range(2):
        found = asyncio.run(ask_all(pair.proxy.url, pair.model, trio.prompts[some], at_once=16))

        for wanted, got in zip(trio.reference[some], found, strict=True):
            assert not isinstance(got, httpx.HTTPError), got
            assert difference(wanted, got) == ""


def test_every_block_comes_back_and_every_transfer_was_verified(pair: Offloading) -> None:
    """After all of this: no block is lost on either node, and no digest differed."""
    for server in (pair.prefill, pair.decode):
        settle(server, GIVEN_BACK_WITHIN_S)
        assert server.integrity()["findings"] == []
    totals = pair.decode.transfers()["worker"]["totals"]
    print(totals, pair.prefill.metrics()[STORED], pair.decode.metrics()[STORED])
    assert totals["verified"] == totals["loaded"] > 0
    assert totals["mismatched"] == 0
