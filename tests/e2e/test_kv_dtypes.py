"""KV of every type that the CPU engine keeps arrives as it was sent; nodes of different types do not exchange any."""

import pytest

from baton.contracts.http import DISAGGREGATED
from tests.e2e.client import difference
from tests.e2e.conftest import Trio
from tests.e2e.fidelity import VERIFY, answers
from tests.e2e.stack import FLOAT32, Server, Stack

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(300)]


def hands_over(stack: Stack, trio: Trio, *flags: str, is_exact: bool) -> Server:
    """Compare digests of all blocks on two nodes with these flags, and tokens with one server's; return the decode node."""
    prompts = [prompt for prompt in trio.prompts[::4] if len(prompt) > 1]  # the last token is D's own in any case
    prefill = stack.node("prefill", *flags, *VERIFY, "--max-num-batched-tokens", "256")
    decode = stack.node("decode", *flags, *VERIFY)
    proxy = stack.proxy([prefill], [decode])

    found = answers(proxy.url, stack.model, prompts, at_once=3)

    assert [answer.path for answer in found] == [DISAGGREGATED] * len(prompts)
    totals = decode.transfers()["worker"]["totals"]
    assert totals["verified"] == totals["loaded"] == len(prompts), totals
    if is_exact:
        plain = stack.plain(*flags)
        plain.wait_ready()
        wanted = answers(plain.url, stack.model, prompts)
        assert [difference(*pair) for pair in zip(wanted, found, strict=True)] == [""] * len(prompts)
    return decode


@pytest.mark.matrix
@pytest.mark.parametrize(
    "flags",
    [
        ("--dtype", "float16"),
        ("--dtype", "bfloat16"),
        ("--dtype", "bfloat16", "--kv-cache-dtype", "fp8_e5m2"),
    ],
    ids=["float16", "bfloat16", "fp8_e5m2"],
)
def test_what_d_holds_is_what_p_computed(stack: Stack, trio: Trio, flags: tuple[str, ...]) -> None:
    """In half precision plain vLLM differs from itself between batches, so that tokens say nothing."""
    hands_over(stack, trio, *flags, is_exact=False)


@pytest.mark.exhaustive  # bytes of any type: layout/test_regions.py; the refusal: test_fingerprint.py, test_node_info.py, test_node.py
def test_another_type_of_kv_is_another_cache(stack: Stack, trio: Trio) -> None:
    """Two nodes with fp8 are exact; with a node of another type they are not paired, and it can be read why; D computes the prompt."""
    decode = hands_over(stack, trio, *FLOAT32, "--kv-cache-dtype", "fp8", is_exact=True)
    proxy = stack.proxy([trio.prefill], [decode])

    (got,) = answers(proxy.url, stack.model, trio.prompts[5:6])
    (unpairable,) = proxy.get("/ready")["unpairable"]

    assert got.path != DISAGGREGATED
    assert got.reason == "no ready prefill node makes KV that a ready decode node can use"
    assert "kv_cache_dtype: 'float32' here, 'fp8' there" in unpairable["reason"]
