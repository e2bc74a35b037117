"""KV of every type that the CPU engine keeps arrives as it was sent; nodes of different types do not exchange any."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from baton.contracts.http import DISAGGREGATED
from tests.e2e.client import difference
from tests.e2e.conftest import Trio
from tests.e2e.fidelity import VERIFY, answers
from tests.e2e.stack import FLOAT32, Server, Stack

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(300)]


@contextmanager
def stopped(stack: Stack, *servers: Server) -> Iterator[None]:
    """Wait for some servers, and stop them at the end."""
    try:
        for server in servers:
            server.wait_ready()
        yield
    finally:
        stack.stop(*servers)


@pytest.mark.parametrize(
    ("flags", "is_exact"),
    [
        ((*FLOAT32, "--kv-cache-dtype", "fp8"), True),
        pytest.param(("--dtype", "float16"), False, marks=pytest.mark.matrix),
        pytest.param(("--dtype", "bfloat16"), False, marks=pytest.mark.matrix),
        pytest.param(("--dtype", "bfloat16", "--kv-cache-dtype", "fp8_e5m2"), False, marks=pytest.mark.matrix),
    ],
    ids=["fp8", "float16", "bfloat16", "fp8_e5m2"],
)
def test_what_d_holds_is_what_p_computed(stack: Stack, trio: Trio, flags: tuple[str, ...], is_exact: bool) -> None:
    """Digests of every block agree; in float32 the tokens are those of one server with the same cache.

    In half precision plain vLLM differs from itself between batches, so that tokens say nothing.
    """
    prompts = [prompt for prompt in trio.prompts[::4] if len(prompt) > 1]  # the last token is D's own in any case
    prefill = stack.node("prefill", *flags, *VERIFY, "--max-num-batched-tokens", "256")
    decode = stack.node("decode", *flags, *VERIFY)
    plain = [stack.plain(*flags)] if is_exact else []
    with stopped(stack, prefill, decode, *plain):
        proxy = stack.proxy([prefill], [decode])
        with stopped(stack, proxy):
            found = answers(proxy.url, stack.model, prompts, at_once=3)
            expected = [answers(server.url, stack.model, prompts) for server in plain]

        assert [answer.path for answer in found] == [DISAGGREGATED] * len(prompts)
        totals = decode.transfers()["worker"]["totals"]
        assert totals["verified"] == totals["loaded"] == len(prompts), totals
        for reference in expected:
            assert [difference(*pair) for pair in zip(reference, found, strict=True)] == [""] * len(prompts)


def test_another_type_of_kv_is_another_cache(stack: Stack, trio: Trio) -> None:
    """The two are not paired, and it can be read why; D computes the prompt itself."""
    decode = stack.node("decode", *FLOAT32, "--kv-cache-dtype", "fp8")
    with stopped(stack, decode):
        proxy = stack.proxy([trio.prefill], [decode])
        with stopped(stack, proxy):
            (got,) = answers(proxy.url, stack.model, trio.prompts[5:6])
            (unpairable,) = proxy.get("/ready")["unpairable"]

    assert got.path != DISAGGREGATED
    assert got.reason == "no ready prefill node makes KV that a ready decode node can use"
    assert "kv_cache_dtype: 'float32' here, 'fp8' there" in unpairable["reason"]
