"""One byte of a real transfer changes on its way: the client never notices, both nodes do."""

from pathlib import Path

import pytest

from baton.contracts.http import DISAGGREGATED, RECOMPUTED
from tests.e2e.client import difference
from tests.e2e.conftest import Trio
from tests.e2e.fidelity import answers
from tests.e2e.stack import FLOAT32, Stack
from tests.e2e.targets import FLIP_FILE
from tests.e2e.waiting import GIVEN_BACK_WITHIN_S, settle

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

VERIFY = ("--kv-verify", "full")


def test_a_flipped_byte_costs_a_recomputation_and_no_wrong_token(stack: Stack, trio: Trio, tmp_path: Path) -> None:
    """The answer is exact, D and P count the mismatch and name it, nothing is fenced, and the next prompt travels."""
    order = tmp_path / "flip"
    prefill = stack.node(
        "prefill",
        *FLOAT32,
        *VERIFY,
        "--max-num-batched-tokens",
        "256",
        name="flipping",
        target="tests.e2e.targets:flipping_prefill_node",
        env={FLIP_FILE: str(order)},
    )
    decode = stack.node("decode", *FLOAT32, name="verifying")
    for server in (prefill, decode):
        server.wait_ready()
    proxy = stack.proxy([prefill], [decode])
    proxy.wait_ready()
    longest = sorted(range(len(trio.prompts)), key=lambda index: len(trio.prompts[index]))[-3:]

    for index in longest:
        order.touch()
        (damaged,) = answers(proxy.url, stack.model, [trio.prompts[index]])
        (again,) = answers(proxy.url, stack.model, [trio.prompts[index]])

        assert not order.exists()
        assert (damaged.path, difference(trio.reference[index], damaged)) == (RECOMPUTED, "")
        assert "not the KV that was sent" in damaged.reason
        assert difference(trio.reference[index], again) == ""
    (whole,) = answers(proxy.url, stack.model, [trio.prompts[3]])

    assert (whole.path, difference(trio.reference[3], whole)) == (DISAGGREGATED, "")
    there, here = decode.transfers()["worker"]["totals"], prefill.transfers()["worker"]["totals"]
    print(there, here)
    assert (there["mismatched"], there["fences"], here["mismatched"]) == (3, 0, 3)
    for server in (prefill, decode):
        settle(server, GIVEN_BACK_WITHIN_S)
    stack.stop(proxy, decode, prefill)
