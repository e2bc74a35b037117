"""Signals to real nodes: what they have begun ends well where it can, and then they are gone, engine and all."""

import asyncio
import os
import signal
import time

import httpx
import pytest

from baton.contracts.http import DISAGGREGATED, NODE_PATH
from baton.contracts.kv_transfer import new_transfer_id
from baton.node.engine_watch import EXIT_ENGINE_ENDED
from benchmarks.usage import descendants
from tests.e2e.client import body_for, complete
from tests.e2e.conftest import Trio
from tests.e2e.stack import FLOAT32, Server, Stack
from tests.support.processes import alive
from tests.support.waiting import eventually

pytestmark = pytest.mark.e2e

GONE_WITHIN_S = 60.0
DRAINS_WITHIN_S = 30.0


def terminate(server: Server) -> None:
    """Send SIGTERM and wait until the node says that it drains."""
    assert server.child is not None
    server.child.terminate()
    eventually(lambda: server.get(NODE_PATH)["state"] == "draining", DRAINS_WITHIN_S)


def exit_status(server: Server) -> int | None:
    """Wait for the end of a node."""
    assert server.child is not None
    return server.child.wait(GONE_WITHIN_S)


def test_a_prefill_node_stays_until_its_prompts_are_fetched(stack: Stack, trio: Trio) -> None:
    """The prompt's request has ended and no decode node has asked yet: leaving now would cost a recomputation."""
    prefill = stack.node("prefill", *FLOAT32, name="drained-prefill", target="tests.e2e.targets:telling_prefill_node")
    prefill.wait_ready()
    transfer_id, prompt = new_transfer_id(), [8, *trio.prompts[14]]
    (address,) = prefill.info()["control_addresses"]
    asked = body_for(stack.model, prompt, max_tokens=1, **stack.leg("prefill", transfer_id=transfer_id))
    prefill.ask("/v1/completions", asked)
    terminate(prefill)
    refused = httpx.post(f"{prefill.url}/v1/completions", json=asked)
    time.sleep(1.0)
    assert prefill.child is not None
    assert prefill.child.poll() is None

    async def fetch() -> str:
        async with httpx.AsyncClient(timeout=30) as client:
            leg = stack.leg("decode", address, transfer_id=transfer_id)
            return (await complete(client, trio.decode.url, stack.model, prompt, **leg)).path

    path = asyncio.run(fetch())

    assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
    assert path == DISAGGREGATED
    assert exit_status(prefill) == 0
    log = prefill.log.read_text()
    assert "Traceback" not in log
    assert "shut down: SCHEDULER" in log
    assert "shut down: WORKER" in log


@pytest.mark.parametrize(
    ("to_engine", "status"),
    [
        pytest.param(True, EXIT_ENGINE_ENDED, id="engine"),
        pytest.param(False, -signal.SIGKILL, id="server", marks=pytest.mark.exhaustive),
    ],
)
def test_a_node_and_its_engine_end_together(stack: Stack, to_engine: bool, status: int) -> None:
    """When one of them is killed. A supervisor that restarts on failure must see one; an engine left behind would look alive to its peers."""
    node = stack.node("decode", *FLOAT32, name="ended-decode")
    node.wait_ready()
    assert node.child is not None
    processes = [node.child.pid, *descendants(node.child.pid)]
    assert len(processes) == 2

    os.kill(processes[to_engine], signal.SIGKILL)

    assert exit_status(node) == status
    eventually(lambda: not any(map(alive, processes)))
    assert ("its engine has died" in node.log.read_text()) == to_engine
