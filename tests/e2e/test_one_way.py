"""Nodes without `transfer.both_ways`: each has its role's side alone, and refuses what is meant for the other."""

import httpx
import pytest

from baton.contracts.kv_transfer import Role
from tests.e2e.conftest import Trio
from tests.e2e.stack import ANSWER_TIMEOUT_S, Stack
from tests.e2e.test_both_ways import COMPLETIONS, HAS_TOKENS, ask, body_of, prompt_of, send
from tests.e2e.waiting import leftovers

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]


@pytest.mark.parametrize(("role", "other"), [("prefill", "decode"), ("decode", "prefill")])
def test_a_node_refuses_the_other_side(stack: Stack, trio: Trio, role: Role, other: Role) -> None:
    """The answer names both roles; and the node does not say that it could."""
    node = trio.prefill if role == "prefill" else trio.decode
    body = {"model": stack.model, **body_of(prompt_of(6), 1), **stack.leg(other, "tcp://127.0.0.1:1")}

    response = httpx.post(node.url + COMPLETIONS, json=body, timeout=ANSWER_TIMEOUT_S)
    info = node.info()

    assert response.status_code == 403
    assert f"kv_transfer_params is meant for a {other} node, and this is a {role} node" in response.text
    assert (info["both_ways"], len(info["control_addresses"])) == (False, 1 if role == "prefill" else 0)
    assert leftovers(node) == []


def test_a_prefill_node_sends_no_answer(stack: Stack, trio: Trio) -> None:
    """It says why, and the decode node computes all of it."""
    prompt = prompt_of(7)
    wanted, _ = ask(trio.plain, body_of(prompt, HAS_TOKENS))

    tokens, path, transfer_id = send(
        stack, trio.prefill, trio.decode, prompt, wanted[: HAS_TOKENS // 2], max_tokens=HAS_TOKENS
    )

    assert (tokens, path) == (wanted, "recomputed")
    failures = [each for each in trio.decode.transfers()["scheduler"]["failures"] if each["transfer_id"] == transfer_id]
    assert ["transfer.both_ways is off" in each["reason"] for each in failures] == [True]
    assert leftovers(trio.prefill, trio.decode) == []
