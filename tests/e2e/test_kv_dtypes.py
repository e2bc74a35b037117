"""KV of every type that the CPU engine keeps arrives as it was sent. Nodes of different types: test_fingerprint.py, test_node_info.py."""

import pytest

from baton.contracts.http import DISAGGREGATED
from tests.e2e.conftest import Trio
from tests.e2e.fidelity import VERIFY, answers
from tests.e2e.stack import Stack

pytestmark = [pytest.mark.e2e, pytest.mark.matrix, pytest.mark.slow]


@pytest.mark.parametrize(
    "flags",
    [
        ("--dtype", "float16"),
        ("--dtype", "bfloat16"),
        ("--dtype", "bfloat16", "--kv-cache-dtype", "fp8_e5m2"),
        ("--dtype", "float32", "--kv-cache-dtype", "fp8"),
    ],
    ids=["float16", "bfloat16", "fp8_e5m2", "fp8"],
)
def test_what_d_holds_is_what_p_computed(stack: Stack, trio: Trio, flags: tuple[str, ...]) -> None:
    """By digests of all blocks: in half precision plain vLLM differs from itself between batches, so that tokens say nothing."""
    prompts = [prompt for prompt in trio.prompts[::4] if len(prompt) > 1]  # the last token is D's own in any case
    prefill = stack.node("prefill", *flags, *VERIFY, "--max-num-batched-tokens", "256")
    decode = stack.node("decode", *flags, *VERIFY)
    proxy = stack.proxy([prefill], [decode])

    found = answers(proxy.url, stack.model, prompts, at_once=3)

    assert [answer.path for answer in found] == [DISAGGREGATED] * len(prompts)
    totals = decode.transfers()["worker"]["totals"]
    assert totals["verified"] == totals["loaded"] == len(prompts), totals
