import asyncio
import json
import os
import signal
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from baton.contracts.http import CANCEL_PATH, NODE_PATH
from baton.node import drain as drain_module
from baton.node.connector.connector_channel import ConnectorClient, Snapshots
from baton.node.drain import Drain, StopSignals, nothing
from baton.node.errors import ConnectorFailedError, ConnectorSilentError
from tests.support.asgi import Exchange, Recorder, body_of, http
from tests.unit.node.gate import COMPLETIONS, SECRET, gate

TOKEN = [("authorization", f"Bearer {SECRET.node_token()}")]


class Node:
    def __init__(self, pending: Callable[[], Awaitable[int]] = nothing, timeout_s: float = 30.0) -> None:
        self.stopped = asyncio.Event()
        self.drain = Drain(timeout_s, pending, self.stopped.set)

    async def wait_stopped(self) -> None:
        async with asyncio.timeout(20):
            await self.stopped.wait()

    async def still_runs(self) -> bool:
        """Give it time to stop, which it must not use."""
        await asyncio.sleep(0.2)
        return not self.stopped.is_set()


async def test_running_requests_and_transfers_end_first() -> None:
    """All of them; a prompt's request has ended long before its KV is fetched. Then the node stops at once."""
    held = [1]

    async def pending() -> int:
        return held[0]

    node = Node(pending)
    with node.drain.request():
        with node.drain.request():
            node.drain.ask()
            assert node.drain.begun
            assert await node.still_runs()
        assert await node.still_runs()
    assert await node.still_runs()
    held[0] = 0
    await node.wait_stopped()


async def test_the_wait_is_bounded() -> None:
    node = Node(timeout_s=0.1)
    with node.drain.request():
        node.drain.ask()
        await node.wait_stopped()


async def test_a_dead_connector_is_not_waited_for() -> None:
    """No process is left that could push."""

    async def pending() -> int:
        raise ConnectorFailedError("its process is gone")

    node = Node(pending)
    node.drain.ask()
    await node.wait_stopped()


@pytest.mark.parametrize("goes_on", [True, False])
async def test_a_silent_connector_is_waited_for_as_long_as_anything_else(*, goes_on: bool) -> None:
    """A stopped engine goes on, and decode nodes still want its prompts; one that stays silent holds up nothing for ever."""
    asked = []

    async def pending() -> int:
        asked.append(1)
        if goes_on and len(asked) > 5:
            return 0
        raise ConnectorSilentError("no answer")

    node = Node(pending, timeout_s=60.0 if goes_on else 0.5)
    node.drain.ask()
    await node.wait_stopped()

    assert len(asked) > 5


async def test_asked_again_it_stops_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the first time on, an engine that dies has been told to."""
    monkeypatch.setattr(drain_module, "STOP_SIGNALS", signals := StopSignals())
    node = Node()
    with node.drain.request():
        node.drain.ask()
        assert signals.received
        assert await node.still_runs()
        node.drain.ask()
        await node.wait_stopped()


async def test_sigterm_drains_and_sigint_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGTERM is taken from its earlier handler; when nothing is left, vLLM gets the signal that it still handles.

    From then on a server that ends without either has ended by itself.
    """
    monkeypatch.setattr(drain_module, "STOP_SIGNALS", signals := StopSignals())
    loop = asyncio.get_running_loop()
    told = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told.set)
    try:
        drain = Drain(30.0)
        drain.take_signal()
        assert signals.ended_unasked
        with drain.request():
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.sleep(0.1)
            assert drain.begun
            assert not told.is_set()
        async with asyncio.timeout(20):
            await told.wait()
        assert not signals.ended_unasked
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The transfers that the connector reports, to be changed by the test."""
    transfers: list[dict[str, Any]] = [{"transfer_id": "a" * 32, "state": "held"}]

    async def both(_: ConnectorClient) -> Snapshots:
        return Snapshots({"transfers": transfers}, {})

    async def cancel(_: ConnectorClient, transfer_ids: list[str]) -> int:
        return len(transfer_ids)

    monkeypatch.setattr(ConnectorClient, "both", both)
    monkeypatch.setattr(ConnectorClient, "cancel", cancel)
    return transfers


async def test_a_draining_gate_refuses_work_and_answers_the_node_api(
    held: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """503 with the time to come again, which elsewhere will do; cancels are needed to get rid of held prompts."""
    stopped = asyncio.Event()
    monkeypatch.setattr("baton.node.drain._stop_vllm", stopped.set)
    app = Recorder()
    node = gate(app, "prefill")
    node._drain.ask()

    refused = await Exchange(http("POST", COMPLETIONS), body_of(b"{}")).run(node)
    described = await Exchange(http("GET", NODE_PATH, TOKEN)).run(node)
    cancel = body_of(json.dumps({"transfer_ids": ["a" * 32]}).encode())
    cancelled = await Exchange(http("POST", CANCEL_PATH, TOKEN), cancel).run(node)
    await Exchange(http("GET", "/health")).run(node)
    await asyncio.sleep(0.1)

    assert (refused.status, refused.headers["retry-after"]) == (503, "1")
    assert json.loads(refused.body)["error"]["type"] == "service_unavailable"
    assert json.loads(described.body)["state"] == "draining"
    assert cancelled.status == 200
    assert [scope["path"] for scope in app.scopes] == ["/health"]
    assert not stopped.is_set()
    held[0]["state"] = "complete"
    async with asyncio.timeout(20):
        await stopped.wait()
