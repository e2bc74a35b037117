"""SIGTERM on real nodes: what they have begun ends well, and then they are gone."""

import asyncio
import time
from collections.abc import Iterator

import httpx
import pytest

from baton.contracts.http import DISAGGREGATED, NODE_PATH
from baton.contracts.kv_transfer import FIELD, Role, TransferParams, new_transfer_id, sign
from baton.contracts.secret import read_secret
from tests.e2e.client import body_for, complete
from tests.e2e.fidelity import choose_prompts
from tests.e2e.stack import FLOAT32, Server, Stack

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]

GONE_WITHIN_S = 60.0
DRAINS_WITHIN_S = 30.0


@pytest.fixture
def pair(stack: Stack) -> Iterator[tuple[Server, Server]]:
    """A prefill and a decode node of this test's own."""
    prefill = stack.node("prefill", *FLOAT32, name="drained-prefill")
    decode = stack.node("decode", *FLOAT32, name="drained-decode")
    for server in (prefill, decode):
        server.wait_ready()
    yield prefill, decode
    stack.stop(prefill, decode)


def terminate(server: Server) -> None:
    """Send SIGTERM and wait until the node says that it drains."""
    assert server.child is not None
    server.child.terminate()
    deadline = time.monotonic() + DRAINS_WITHIN_S
    while server.get(NODE_PATH)["state"] != "draining":
        assert time.monotonic() < deadline
        time.sleep(0.02)


def exit_status(server: Server) -> int | None:
    """Wait for the end of a node."""
    assert server.child is not None
    return server.child.wait(GONE_WITHIN_S)


def test_a_prefill_node_stays_until_its_prompts_are_fetched(stack: Stack, pair: tuple[Server, Server]) -> None:
    """The prompt's request has ended and no decode node has asked yet: leaving now would cost a recomputation."""
    prefill, decode = pair
    secret, transfer_id = read_secret(stack.secret_file), new_transfer_id()
    prompt = max(choose_prompts(20), key=len)
    (address,) = prefill.info()["control_addresses"]

    def leg(role: Role, peer: str) -> dict[str, object]:
        return {FIELD: sign(TransferParams(transfer_id=transfer_id, role=role, peer=peer), secret)}

    url = f"{prefill.url}/v1/completions"
    first = httpx.post(url, json=body_for(stack.model, prompt, max_tokens=1, **leg("prefill", "")), timeout=30)
    terminate(prefill)
    refused = httpx.post(url, json=body_for(stack.model, prompt, max_tokens=1, **leg("prefill", "")))
    time.sleep(1.0)
    assert prefill.child is not None
    assert prefill.child.poll() is None

    async def fetch() -> str:
        async with httpx.AsyncClient(timeout=30) as client:
            return (await complete(client, decode.url, stack.model, prompt, **leg("decode", address))).path

    path = asyncio.run(fetch())

    assert (first.status_code, refused.status_code, refused.headers["retry-after"]) == (200, 503, "1")
    assert path == DISAGGREGATED
    assert exit_status(prefill) == 0
    assert "Traceback" not in prefill.log.read_text()
