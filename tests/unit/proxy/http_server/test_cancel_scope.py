import asyncio

import pytest
from starlette.types import Receive, Scope, Send

from baton.proxy.errors import ClientGoneError
from baton.proxy.http_server.cancel_scope import CancelOnDisconnect, CancelScope
from baton.proxy.http_server.client_protocol import writer_of
from tests.support.cluster import until_true
from tests.support.fake_transport import Transport
from tests.unit.proxy.http_server.connections import REQUEST, connected


async def test_a_block_that_has_ended_is_cancelled_no_more() -> None:
    scope = CancelScope()
    assert not scope.end(None)

    scope.cancel()
    await asyncio.sleep(0)


@pytest.mark.parametrize("leaves", ["before", "amid", "after", "never"])
async def test_a_block_lasts_no_longer_than_its_client_stays(transport: Transport, leaves: str) -> None:
    """What the task does behind it goes on, as does a task that something else cancels."""
    begun, found = asyncio.Event(), list[str]()

    async def app(scope: Scope, _receive: Receive, _send: Send) -> None:
        if leaves == "before":
            served.connection_lost(None)
        try:
            with CancelOnDisconnect(writer_of(scope)):
                begun.set()
                await asyncio.sleep(3600 if leaves == "amid" else 0)
        except ClientGoneError:
            found.append("gone")
        if leaves == "after":
            served.connection_lost(None)
        await asyncio.sleep(0)
        found.append("behind it")

    served = connected(app, transport)
    served.data_received(REQUEST)
    if leaves == "amid":
        await begun.wait()
        served.connection_lost(None)
    await until_true(lambda: "behind it" in found)

    assert begun.is_set() is (leaves != "before")
    assert found == ["gone"] * (leaves in ("before", "amid")) + ["behind it"]


async def test_a_block_whose_task_is_cancelled_as_the_client_leaves_stays_cancelled(transport: Transport) -> None:
    """A deadline or a stop must not be lost."""
    found = asyncio.get_running_loop().create_future()

    async def app(scope: Scope, _receive: Receive, _send: Send) -> None:
        try:
            with CancelOnDisconnect(writer_of(scope)):
                task = asyncio.current_task()
                assert task is not None
                task.cancel()
                served.connection_lost(None)
                await asyncio.sleep(3600)
        except BaseException as exc:
            found.set_result(type(exc))
            raise

    served = connected(app, transport)
    served.data_received(REQUEST)

    assert await asyncio.wait_for(found, 20) is asyncio.CancelledError
